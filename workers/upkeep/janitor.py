"""Periodic work of a worker that moves bodies, in a separate thread.

It publishes the records of dead workers and deletes results that everybody has read and objects
that nobody needs. That may wait for disks and object stores, which must not delay the keeper's
leases.
"""

from __future__ import annotations

import logging
import time

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
        lease = runtime.lease
        self._duties = Duties(
            "janitor",
            [
                Duty("trim", min(1.0, runtime.results.trim_s), self._trim),
                Duty("leftovers", lease.renew_s, self._publish_leftovers),
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

    def _publish_leftovers(self) -> None:
        publish_leftovers(self._runtime, self._ledger, most_s=self._runtime.lease.renew_s / 2)

    def _trim(self) -> None:
        results = self._runtime.results
        if time.monotonic() >= self._refused_until:
            self._refused, self._refused_until = {}, time.monotonic() + _REFUSED_S
        known = set(self._refused)
        done = trim(
            self._ledger,
            results,
            interval_s=results.trim_s,
            archive=self._archive,
            refused=self._refused,
        )
        if done is None:
            return
        for entry in self._refused.keys() - known:
            logger.error(
                "%s; it cannot be archived and stays in Redis, other groups are not held up",
                self._refused[entry],
                extra={"action": "archive_refused", "entry": entry},
            )
        for group in set(done.abandoned) - self._abandoned:
            logger.warning(
                "consumer group %s has stopped reading and is not durable: results are deleted "
                "without waiting for it",
                group,
                extra={"action": "group_abandoned", "group": group},
            )
        self._abandoned = set(done.abandoned)

    def _remove_objects(self) -> None:
        count = self._runtime.bodies.remove_unneeded(self._ledger, lambda: self._duties.stopping)
        if count:
            logger.info(
                "deleted %d objects that no result names",
                count,
                extra={"action": "objects_deleted"},
            )
