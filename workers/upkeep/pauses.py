"""The paused runs, as of this worker's last beat; trajectories wait here."""

from __future__ import annotations

import asyncio

POLL_S = 0.5
"""Interval in which a waiting trajectory looks, in memory, not in Redis."""


class Pauses:
    """The paused runs of which this process holds leases. Thread-safe."""

    def __init__(self) -> None:
        self._runs: frozenset[str] = frozenset()

    def replace(self, run_ids: frozenset[str]) -> frozenset[str]:
        """Set the paused runs; returns those that were not paused before."""
        # One assignment of a new set: the event loop reads it without a lock.
        fresh, self._runs = run_ids - self._runs, run_ids
        return fresh

    async def over(self, run_id: str) -> None:
        """Return once the run is not paused."""
        while run_id in self._runs:  # noqa: ASYNC110 - set by a thread, on no loop
            await asyncio.sleep(POLL_S)
