"""Publishing what dead workers of this host had finished."""

from __future__ import annotations

import logging
import math
import time
from functools import partial

from hermes_queue.bodies import codec
from hermes_queue.errors import HermesQueueError, RedisFull, RedisUnavailable, StoreUnavailable
from hermes_queue.ledger import ACCEPTED, Ledger, PublishVerdict
from hermes_queue.models import ScoredTrajectory
from workers.runtime import Runtime
from workers.spool import SUFFIX, SpooledRecord
from workers.upkeep.quarantine import boot_id

logger = logging.getLogger(__name__)


def publish_leftovers(
    runtime: Runtime, ledger: Ledger | None = None, *, most_s: float = math.inf
) -> int:
    """Publish the spooled records of workers that are gone; returns how many were accepted.

    Leases of these workers end: their locks prove that they are dead.
    A record that cannot be read stays on disk. When Redis or the store is away or full, or
    `most_s` seconds are over, the rest stays for the next call.

    Args:
        runtime: whose spool to look around.
        ledger: to publish with; default: the runtime's.
        most_s: no further record is begun any later.
    """
    accepted = 0
    ends = time.monotonic() + most_s
    told = partial(_tell_of_death, ledger or runtime.ledger)
    for spooled in runtime.spool.leftovers(told):
        try:
            body = spooled.body()
            record = codec.decode_record(body)
            verdict = runtime.bodies.publish(
                ledger or runtime.ledger,
                record,
                body,
                owner=spooled.owner,
                finished_ttl_s=runtime.results.finished_ttl_s,
            )
        except (OSError, ValueError, HermesQueueError) as error:
            logger.error(
                "spooled record %s stays: %s",
                spooled.path,
                error,
                extra={"action": "spool_kept"},
            )
            if isinstance(error, RedisFull | RedisUnavailable | StoreUnavailable):
                break
            continue
        accepted += verdict in ACCEPTED
        runtime.published(record, verdict)
        logger.info(
            "spooled record of %s: %s",
            record.trajectory_id,
            verdict,
            extra={"action": "spool_published", "trajectory_id": record.trajectory_id},
        )
        put_away(spooled, record, verdict)
        if time.monotonic() >= ends:
            break
    return accepted


def put_away(spooled: SpooledRecord, record: ScoredTrajectory, verdict: PublishVerdict) -> None:
    """Do with a spooled record what Redis' answer to its publication leaves to do.

    One with a score that Redis knows nothing of is kept: the ledger forgot it (a restore of older
    data, a replica that was promoted, an eviction), and a person may want it all the same.
    """
    if verdict != "unknown" or record.score is None:
        spooled.drop()
        return
    path = spooled.set_aside()
    logger.error(
        "Redis knows nothing of %s, which has a score (%s): was Redis restored from older data, or "
        "does it evict keys? The record is kept in %s. To have it published, enqueue its run again "
        "under the same run id, give the file the ending %s and start a worker on this host",
        record.trajectory_id,
        record.score,
        path,
        SUFFIX,
        extra={"action": "record_set_aside", "trajectory_id": record.trajectory_id},
    )


def _tell_of_death(ledger: Ledger, owner: str) -> None:
    try:
        count = ledger.worker_ended(owner, boot_id=boot_id())
    except HermesQueueError as error:  # then its leases end when they end
        logger.warning("%s is dead: %s", owner, error, extra={"action": "death_unsaid"})
        return
    if count > 0:
        logger.warning(
            "%s is dead: %d jobs are taken back", owner, count, extra={"action": "death_found"}
        )
