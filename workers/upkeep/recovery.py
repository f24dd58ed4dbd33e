"""Publishes the finished records of dead workers of this host."""

from __future__ import annotations

import logging
import math
import time
from functools import partial

from hermes_queue.bodies import codec
from hermes_queue.errors import HermesQueueError, RedisFull, RedisUnavailable, StoreUnavailable
from hermes_queue.keyspace.deployment import LEFT_TO_PARENT
from hermes_queue.ledger import ACCEPTED, Ledger, PublishVerdict
from hermes_queue.models import ScoredTrajectory
from workers.runtime import Runtime
from workers.spool import SUFFIX, SpooledRecord
from workers.upkeep.quarantine import boot_id

logger = logging.getLogger(__name__)


def publish_leftovers(
    runtime: Runtime, ledger: Ledger | None = None, *, most_s: float = math.inf
) -> int:
    """Publish spooled records whose task or worker is dead; returns the number of accepted ones.

    Leases of dead workers are ended, since their free locks prove that they are dead. A record
    that cannot be read stays on disk. When Redis or the store is away or full, or `most_s`
    seconds are over, the rest stays for the next call. `ledger` is that of the calling thread;
    default: the runtime's.
    """
    accepted = 0
    ends = time.monotonic() + most_s
    ledger, ttl_s = ledger or runtime.ledger, runtime.results.finished_ttl_s
    for spooled in runtime.spool.leftovers(partial(_report_death, ledger)):
        try:
            body = spooled.body()
            record = codec.decode_record(body)
            verdict = runtime.bodies.publish_found(
                ledger, record, body, owner=spooled.owner, finished_ttl_s=ttl_s
            )
        except Exception as error:  # noqa: BLE001 - it must not hold back the others
            path, extra = spooled.path, {"action": "spool_kept"}
            logger.error("spooled record %s stays unpublished: %s", path, error, extra=extra)
            if isinstance(error, RedisFull | RedisUnavailable | StoreUnavailable):
                break
            continue
        accepted += verdict in ACCEPTED
        runtime.published(record, verdict)
        name = record.trajectory_id
        extra = {"action": "spool_published", "trajectory_id": name}
        logger.info("spooled record of %s: %s", name, verdict, extra=extra)
        put_away(spooled, record, verdict)
        if time.monotonic() >= ends:
            break
    return accepted


def put_away(spooled: SpooledRecord, record: ScoredTrajectory, verdict: PublishVerdict) -> None:
    """Delete or set aside a spooled record after its publication was answered.

    A record of finished work that Redis does not know is kept: the ledger has lost it (a restore of
    older data, a promoted replica, an eviction), and a person may still want it.
    """
    if verdict != "unknown" or record.status == "failed":
        spooled.drop()
        return
    try:
        path = spooled.set_aside()
    except OSError:  # no room for a file of its own: it stays, and the next worker tries again
        path = spooled.path
    logger.error(
        "Redis does not know %s, which ended well (score %s): was Redis restored from older data, "
        "or does it evict keys? The record is kept in %s. To publish it, enqueue its run again "
        "under the same run id, rename the file to end in %s and start a worker on this host",
        record.trajectory_id,
        record.score,
        path,
        SUFFIX,
        extra={"action": "record_set_aside", "trajectory_id": record.trajectory_id},
    )


def _report_death(ledger: Ledger, owner: str) -> bool:
    """Report that `owner` is dead; False if its parent does, and this is to be asked again."""
    try:
        count = ledger.worker_ended(owner, boot_id=boot_id())
    except HermesQueueError as error:  # its leases then expire by themselves
        extra = {"action": "death_unsaid"}
        logger.warning("the death of worker %s cannot be reported: %s", owner, error, extra=extra)
        return True
    if count > 0:
        extra = {"action": "death_found"}
        logger.warning("worker %s is dead: %d jobs are taken back", owner, count, extra=extra)
    return count != LEFT_TO_PARENT
