"""How fast sandboxes are created, and how many may be starting at once.

Providers refuse bursts, and thousands of sandboxes that start at the same time start slowly.
Backends know no Redis: workers hand them a gate that holds for the whole fleet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol


class CreationGate(Protocol):
    """Passed once per sandbox."""

    def creating(self) -> AbstractAsyncContextManager[None]:
        """Waits for its turn on entry; the sandbox counts as starting until the exit."""
        ...


class ProcessCreationGate:
    """A gate for one process: a token bucket of one second's worth, and a semaphore."""

    def __init__(self, *, creates_per_s: float, max_starting: int) -> None:
        self._per_s = creates_per_s
        self._starting = asyncio.Semaphore(max_starting)
        self._free_at = 0.0
        """When the bucket would be full again less one second, on the monotonic clock."""

    @asynccontextmanager
    async def creating(self) -> AsyncIterator[None]:
        """See `CreationGate`."""
        async with self._starting:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 1.0) + 1.0 / self._per_s
            if self._free_at > now:
                await asyncio.sleep(self._free_at - now)
            yield
