"""Deletes snapshots that nobody needs: of trajectories that have ended elsewhere, or long ago.

A worker deletes its own when the trajectory ends. What is left are those of dead workers.
"""

from __future__ import annotations

import asyncio
import logging

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import HermesQueueError
from hermes_queue.extensions import offers
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.handovers import snapshot_needs
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.snapshots import KeepsSnapshots
from hermes_queue.settings import ResumeSettings

logger = logging.getLogger(__name__)

INTERVAL_S = 30.0
GRACE_S = 120.0
"""Younger ones may not be in Redis yet."""


class UnneededSnapshots:
    """The periodic search; runs on the pool's event loop."""

    def __init__(self, backend: SandboxBackend, ledger: Ledger, settings: ResumeSettings) -> None:
        self._backend = backend
        self._ledger = ledger
        self._ttl_s = settings.ttl_s
        self._doubted: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if the backend can keep snapshots."""
        if offers(self._backend, KeepsSnapshots):
            self._task = asyncio.create_task(self._loop(self._backend))

    async def stop(self) -> None:
        """End. Idempotent."""
        task, self._task = self._task, None
        if task:
            await end_tasks(task)

    async def _loop(self, backend: KeepsSnapshots) -> None:
        while True:
            try:
                await delete_unneeded(
                    backend, self._ledger, ttl_s=self._ttl_s, doubted=self._doubted
                )
            except (HermesQueueError, OSError) as error:
                self._doubted.clear()
                extra = {"action": "snapshots_left"}
                logger.warning("cannot look for unneeded snapshots: %s", error, extra=extra)
            except Exception:  # of a foreign backend; the next round tries again
                extra = {"action": "snapshots_left"}
                logger.exception("cannot look for unneeded snapshots", extra=extra)
            await asyncio.sleep(INTERVAL_S)


async def delete_unneeded(
    backend: KeepsSnapshots,
    ledger: Ledger,
    *,
    ttl_s: float,
    grace_s: float = GRACE_S,
    doubted: set[str] | None = None,
) -> int:
    """Delete snapshots that no trajectory names, or that are older than `ttl_s`; returns how many.

    One that goes with work that waits to be graded is kept for as long as that. With `doubted`, a
    set that only this function changes, one that no trajectory names is deleted by the second call
    that finds it so: a worker may have waited for Redis to answer before it could name it.

    Raises:
        RedisUnavailable: repeat the call.
    """
    old = [each for each in await backend.snapshots() if each.age_s > grace_s]
    if not old:
        return 0
    ids = {each.trajectory_id for each in old}
    needed = await asyncio.to_thread(snapshot_needs, ledger, ids)
    count, before = 0, None if doubted is None else set(doubted)
    unnamed = {e.snapshot_id for e in old if needed[e.trajectory_id].snapshot_id != e.snapshot_id}
    if doubted is not None:
        doubted.clear()
        doubted.update(unnamed)
    for each in old:
        too_old = each.age_s > ttl_s and not needed[each.trajectory_id].is_handed
        is_unneeded = each.snapshot_id in (unnamed if before is None else unnamed & before)
        if is_unneeded or too_old:
            await backend.drop_snapshot(each.snapshot_id)
            count += 1
    if count:
        extra = {"action": "snapshots_deleted"}
        logger.info("deleted %d snapshots that nobody needs", count, extra=extra)
    return count
