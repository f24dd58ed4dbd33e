"""How many slots of a backend may be leased at once; may change while they are."""

from __future__ import annotations

import asyncio


class Capacity:
    """A semaphore with a size; who waits longest is served first. Belongs to one event loop."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._leased = 0
        self._excess = 0
        """Places that were taken away and are still in the semaphore, or leased."""
        self._places = asyncio.Semaphore(slots)

    @property
    def free(self) -> int:
        """How many calls of `acquire` would return at once."""
        return max(0, self.slots - self._leased)

    async def acquire(self) -> None:
        """Take a place; waits for one."""
        await self._places.acquire()
        while self._excess:
            self._excess -= 1
            await self._places.acquire()
        self._leased += 1

    def release(self) -> None:
        """Give a place back."""
        self._leased -= 1
        self._give()

    def resize(self, slots: int) -> None:
        """Offer so many places from now on; those that are leased beyond are taken as they end."""
        change, self.slots = slots - self.slots, slots
        self._excess += max(0, -change)
        for _ in range(change):
            self._give()

    def _give(self) -> None:
        if self._excess:
            self._excess -= 1
        else:
            self._places.release()
