"""How many slots a backend gives out at once, and that they may become more."""

from __future__ import annotations

import asyncio


class Growing:
    """For backends that count their slots with a semaphore."""

    slots: int
    _capacity: asyncio.Semaphore

    def fit(self, slots: int) -> None:
        """Have at least `slots` from now on. On the loop's thread; never fewer than before."""
        while self.slots < slots:
            self.slots += 1
            self._capacity.release()
