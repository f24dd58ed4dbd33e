"""Which runs are paused, as this worker's last beat was told; trajectories wait here."""

from __future__ import annotations

import asyncio

POLL_S = 0.5
"""How often a waiting trajectory looks. It looks at memory, not at Redis."""


class Pauses:
    """The paused runs of which this process holds leases. Thread-safe."""

    def __init__(self) -> None:
        self._runs: frozenset[str] = frozenset()

    def replace(self, run_ids: frozenset[str]) -> frozenset[str]:
        """Set them; returns those that were not paused before."""
        fresh, self._runs = run_ids - self._runs, run_ids
        return fresh

    async def over(self, run_id: str) -> None:
        """Return at once, or when the run is no longer paused; a cancelled task is cancelled."""
        while run_id in self._runs:  # noqa: ASYNC110 - set by a thread, on no loop
            await asyncio.sleep(POLL_S)
