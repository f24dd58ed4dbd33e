"""How much one session's requests may take: connections, calls, time, memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one session's requests."""

    connections: int = 64
    calls: int = 8
    """Calls that are being answered at once; more wait."""
    requests: int = 500
    """Requests at any speed that bring no answer: other paths, wrong keys, refusals, counts."""
    requests_per_s: float = 10.0
    """Pace of further ones: each takes time of an event loop that all trajectories share."""
    body_bytes: int = 32 * MIB
    """Of one body, and of the bodies of all calls that are open. The longest text that a call may
    have takes 24 MiB if all of it is escaped."""
    unannounced_bytes: int = 8 * MIB
    """Of a body without a Content-Length, for which this is set aside."""
    header_s: float = 10.0
    """From the first byte of a request's header to its last one."""
    idle_s: float = 75.0
    """Of a connection without a request."""
    body_s: float = 120.0
    first_sign_s: float = 10.0
    """After so long without an answer, its status and a sign of life are sent."""
    signs_s: float = 5.0
    """Between further signs."""
    drain_s: float = 120.0
    """For the client to take an answer."""


class Memory:
    """Bytes that are set aside for bodies. Who finds too few waits, first come, first served."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[None]:
        """Hold this number of bytes, which must not be more than there are, inside the block."""
        await self._take(size)
        try:
            yield
        finally:
            self._give(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(size)
            else:
                with suppress(ValueError):  # `_give` may have passed over it
                    self._waiting.remove(entry)
                self._give(0)
            raise

    def _give(self, size: int) -> None:
        self._free += size
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            wanted, turn = self._waiting.popleft()
            if not turn.done():  # else it has been cancelled, and its task has yet to run
                self._free -= wanted
                turn.set_result(None)


class Pace:
    """Slows down what comes too often: a burst at any speed, then a number per second."""

    def __init__(self, burst: int, per_s: float, most_waiting: int) -> None:
        """`most_waiting`: as many can wait at once; who gives up waiting must not delay others."""
        self._burst, self._per_s, self._most_waiting = burst, per_s, most_waiting
        self._left: float = burst
        self._at_s = 0.0

    async def turn(self) -> None:
        """Wait for leave."""
        now_s = asyncio.get_running_loop().time()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        self._left = max(self._left - 1, -self._most_waiting)
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)

    def give_back(self) -> None:
        """What had leave is not counted."""
        self._left = min(self._burst, self._left + 1)
