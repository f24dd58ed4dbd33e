"""A `Listening` whose port is held by a relay in a sandbox that the worker cannot reach."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox.base import LOOPBACK
from hermes_queue.sandbox.listening.relay import Relay, RelayWire

logger = logging.getLogger(__name__)

OpenWire = Callable[[int], Awaitable[RelayWire]]
"""Starts the program (`relay.program`) with this port, 0 = any. Raises SandboxError."""


class RelayedListening:
    """See `Listening`. If the stream to the relay is lost, it is started once more on its port.

    The connections of that time are reset.
    """

    host = LOOPBACK

    def __init__(
        self, slot_id: str, open_wire: OpenWire, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._slot_id = slot_id
        self._open_wire = open_wire
        self._factory = factory
        self._relay: Relay
        self._following: asyncio.Task[None]
        self._ending: asyncio.Task[None] | None = None
        self.port = 0
        self.knows_owners = False
        """Whether other slots of the sandbox are refused."""
        self.lost: asyncio.Future[SandboxError] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Open the port. Raises SandboxError."""
        self._relay = await self._begin(0)
        self.port, self.knows_owners = self._relay.port, self._relay.knows_owners
        self._following = asyncio.create_task(self._follow())

    async def _begin(self, port: int) -> Relay:
        relay = Relay(await self._open_wire(port), self._factory)
        try:
            await relay.begun()
        except BaseException:
            with contextlib.suppress(SandboxError):  # the slot's end tries again
                await unbroken(relay.kill())
            raise
        return relay

    async def _follow(self) -> None:
        error = await asyncio.shield(self._relay.ended)
        extra = {"action": "relay_lost"}
        logger.warning("slot %s: %s; starting it again", self._slot_id, error, extra=extra)
        try:
            await self._relay.kill()
            self._relay = await self._begin(self.port)
            error = await asyncio.shield(self._relay.ended)
        except SandboxError as failure:
            error = failure
        if not self.lost.done():
            lost = error if isinstance(error, SlotLost) else SlotLost(f"lost the port: {error}")
            self.lost.set_result(lost)

    async def close(self) -> None:
        """See `Listening`."""
        await self._finish(None, stop=True)

    async def lose(self, error: SandboxError, *, stop: bool) -> None:
        """End it because of `error`, unless it has ended; `stop`: the sandbox still lives."""
        await self._finish(error, stop=stop)

    async def _finish(self, error: SandboxError | None, *, stop: bool) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(error, stop=stop))
        await unbroken(self._ending)

    async def _end(self, error: SandboxError | None, *, stop: bool) -> None:
        if not self.lost.done():
            if error is None:
                self.lost.cancel()
            else:
                self.lost.set_result(error)
        await end_tasks(self._following)
        try:
            await (self._relay.stop() if stop else self._relay.abandon())
        except SandboxError as failure:
            why, extra = "a relay may be left in the sandbox", {"action": "relay_left"}
            logger.warning("slot %s: %s: %s", self._slot_id, why, failure, extra=extra)
        await asyncio.sleep(0)  # connections learn of their end in the loop's next step
