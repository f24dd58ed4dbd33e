"""Publishing what dead workers of this host had finished."""

from __future__ import annotations

import logging

from hermes_queue import codec
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import ACCEPTED
from workers.runtime import Runtime

logger = logging.getLogger(__name__)


def publish_leftovers(runtime: Runtime) -> int:
    """Publish the spooled records of workers that are gone; returns how many were accepted.

    A record that cannot be read or that Redis refuses stays on disk for the next start.
    """
    accepted = 0
    for spooled in runtime.spool.leftovers():
        try:
            body = spooled.body()
            record = codec.decode_record(body)
            verdict = runtime.ledger.publish(
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
            continue
        accepted += verdict in ACCEPTED
        runtime.published(record, verdict)
        logger.info(
            "spooled record of %s: %s",
            record.trajectory_id,
            verdict,
            extra={"action": "spool_published", "trajectory_id": record.trajectory_id},
        )
        if verdict == "unknown" and record.score is not None:
            spooled.set_aside()  # the ledger forgot it; a person may want it all the same
        else:
            spooled.drop()
    return accepted
