"""Periodic work of a worker that moves bodies, in a separate thread.

It publishes the records of dead workers and deletes results that everybody has read and objects
that nobody needs. That may wait for disks and object stores, which must not delay the keeper's
leases.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from hermes_queue.ledger import Ledger
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ArchiveSettings, StoreSettings
from workers.runtime import Runtime
from workers.upkeep.duties import Duties, Duty
from workers.upkeep.recovery import publish_leftovers

logger = logging.getLogger(__name__)

_REFUSED_S = 600.0
"""Seconds for which groups refused by the archive are skipped before they are tried again."""


class Janitor:
    """Runs the work of one worker process, from `start` to `stop`."""

    def __init__(self, runtime: Runtime) -> None:
        """Prepare, with separate connections.

        Raises:
            RedisUnavailable: Redis does not answer.
        """
        self._runtime = runtime
        self._ledger = Ledger.connect(url=runtime.ledger.url)
        archive = ArchiveSettings()
        self._archive = ArchiveSink(archive.directory) if archive.enabled else None
        self._abandoned: set[str] = set()
        self._refused: dict[str, str] = {}
        self._refused_until = 0.0
        renew_s = runtime.lease.renew_s
        recover = partial(publish_leftovers, runtime, self._ledger, most_s=renew_s / 2)
        self._duties = Duties(
            "janitor",
            [
                Duty("trim", min(1.0, runtime.results.trim_s), self._trim),
                Duty("leftovers", renew_s, recover),
                Duty("objects", min(60.0, StoreSettings().grace_s), self._remove_objects),
            ],
        )

    def start(self) -> None:
        """Begin."""
        self._duties.start()

    def stop(self) -> None:
        """End. Idempotent."""
        self._duties.stop()
        self._ledger.close()
        if self._archive:
            self._archive.close()

    def _trim(self) -> None:
        if time.monotonic() >= self._refused_until:
            self._refused, self._refused_until = {}, time.monotonic() + _REFUSED_S
        known = set(self._refused)
        results, archive, refused = self._runtime.results, self._archive, self._refused
        done = trim(
            self._ledger, results, interval_s=results.trim_s, archive=archive, refused=refused
        )
        if done is None:
            return
        for entry in self._refused.keys() - known:
            message = "%s; it cannot be archived and stays in Redis, other groups are not held up"
            extra = {"action": "archive_refused", "entry": entry}
            logger.error(message, self._refused[entry], extra=extra)
        for group in set(done.abandoned) - self._abandoned:
            logger.warning(
                "consumer group %s has stopped reading and is not durable: results are deleted "
                "without waiting for it",
                group,
                extra={"action": "group_abandoned", "group": group},
            )
        self._abandoned = set(done.abandoned)

    def _remove_objects(self) -> None:
        bodies, extra = self._runtime.bodies, {"action": "objects_deleted"}
        if count := bodies.remove_unneeded(self._ledger, lambda: self._duties.stopping):
            logger.info("deleted %d objects that no result names", count, extra=extra)
