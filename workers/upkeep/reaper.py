"""Ends sandboxes that dead workers left at a provider, and drops records of ended ones.

Any worker may do it; a turn in Redis lets one worker of the deployment do it at a time. Redis
also decides whether a sandbox is ownerless, and ending one twice is harmless, so two reapers
that overlap do no damage. A backend whose sandboxes live on the worker's host cleans up by
itself; only its records are dropped here.
"""

from __future__ import annotations

import asyncio
import logging

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import HermesQueueError, SandboxError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.sandboxes import Sandboxes
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.settings import SandboxSettings

logger = logging.getLogger(__name__)


class Reaper:
    """The periodic search for sandboxes of dead workers; runs on the pool's event loop."""

    def __init__(
        self,
        backend: SandboxBackend,
        ledger: Ledger,
        deployment: str,
        settings: SandboxSettings | None = None,
    ) -> None:
        self._backend = backend
        self._sandboxes = Sandboxes(ledger)
        self._deployment = deployment
        self._settings = settings or SandboxSettings()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the first turn comes at once."""
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """End. Idempotent."""
        if self._task:
            await end_tasks(self._task)
            self._task = None

    async def _loop(self) -> None:
        while True:
            try:
                await self.turn()
            except (HermesQueueError, SandboxError) as error:
                logger.warning("reaper: %s", error, extra={"action": "reaper"})
            except Exception:  # a provider's client may raise anything; the next turn tries again
                logger.exception("reaper failed", extra={"action": "reaper"})
            await asyncio.sleep(self._settings.reap_s / 4)

    async def turn(self) -> list[str]:
        """Reap if it is this worker's turn; returns the ids of the sandboxes it ended.

        Raises:
            RedisUnavailable, RedisFull, SandboxError: the rest is left to a later turn.
        """
        name, settings = self._settings.backend, self._settings
        if not await asyncio.to_thread(self._sandboxes.take_turn, name, interval_s=settings.reap_s):
            return []
        # Records are read before the provider's list. In the other order, a sandbox created in
        # between would have a record but be missing from the list, and its record would be dropped
        # as stale.
        records = await asyncio.to_thread(self._sandboxes.all)
        listed = []
        if self._backend.capabilities.remote:
            listed = await self._backend.list_sandboxes({"deployment": self._deployment})
        dead = await asyncio.to_thread(
            self._sandboxes.ownerless, name, listed, grace_s=settings.reap_grace_s
        )
        ended = [sandbox_id for sandbox_id in dead if await self._end(sandbox_id)]
        there = {info.sandbox_id for info in listed}
        for record in records:
            overdue = record.lease_s < -settings.reap_grace_s
            if record.backend == name and overdue and record.sandbox_id not in there:
                await asyncio.to_thread(self._sandboxes.forget, record.sandbox_id)
        return ended

    async def _end(self, sandbox_id: str) -> bool:
        try:
            await self._backend.terminate(sandbox_id)
        except (HermesQueueError, SandboxError) as error:  # the others must still be ended
            extra = {"action": "reaper"}
            logger.warning("sandbox %s cannot be ended: %s", sandbox_id, error, extra=extra)
            return False
        await asyncio.to_thread(self._sandboxes.forget, sandbox_id)
        extra = {"action": "sandbox_reaped"}
        logger.warning("ended sandbox %s of a dead worker", sandbox_id, extra=extra)
        return True
