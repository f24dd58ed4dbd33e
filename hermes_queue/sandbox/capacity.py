"""The number of slots that may be leased at once; it can change during leases."""

from __future__ import annotations

import asyncio


class Capacity:
    """A resizable semaphore; first come, first served. Belongs to one event loop."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._leased = 0
        self._excess = 0
        """Places that were removed by `resize` but are still in the semaphore, or leased."""
        self._places = asyncio.Semaphore(slots)

    @property
    def free(self) -> int:
        """How many calls of `acquire` would return at once."""
        return max(0, self.slots - self._leased)

    async def acquire(self) -> None:
        """Take a place; waits for one."""
        await self._places.acquire()
        while self._excess:  # a place that `resize` removed: consume it and wait for another
            self._excess -= 1
            await self._places.acquire()
        self._leased += 1

    def release(self) -> None:
        """Return a place."""
        self._leased -= 1
        self._give()

    def resize(self, slots: int) -> None:
        """Set the number of places; excess leased ones are removed when they are released."""
        change, self.slots = slots - self.slots, slots
        self._excess += max(0, -change)
        for _ in range(change):
            self._give()

    def _give(self) -> None:
        if self._excess:
            self._excess -= 1
        else:
            self._places.release()
