"""Backends that also note how late the worker's event loop is; BENCHMARK_LAG names the file.

A coroutine sleeps for 20 ms again and again and writes down by how much it woke too late, which is
what every other coroutine of the worker waits, too.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TextIO

from benchmarks.noop import NoopBackend
from hermes_queue.cancellation import end_tasks
from hermes_queue.sandbox.local.backend import LocalBackend

EVERY_S = 0.02
FILE = "BENCHMARK_LAG"


class LagNotes:
    """Writes a line per look: the time on the monotonic clock, and the lag, in seconds."""

    def __init__(self) -> None:
        self._task = asyncio.create_task(self._look(open(os.environ[FILE], "a", buffering=1)))

    async def _look(self, file: TextIO) -> None:
        with file:
            while True:
                due = time.monotonic() + EVERY_S
                await asyncio.sleep(EVERY_S)
                now = time.monotonic()
                file.write(f"{now:.4f} {now - due:.5f}\n")

    async def stop(self) -> None:
        """No more notes."""
        await end_tasks(self._task)


def lags_ms(path: Path, since: float, until: float) -> list[float]:
    """The notes of a time on the monotonic clock, which all processes share; sorted."""
    rows = [line.split() for line in path.read_text().splitlines()]
    found = [1000 * float(lag) for at, lag in rows if since <= float(at) <= until]
    return sorted(found)


class WatchedNoop(NoopBackend):
    """A sandbox without a sandbox."""

    async def start(self) -> None:
        self._notes = LagNotes()

    async def stop(self) -> None:
        await self._notes.stop()


class WatchedLocal(LocalBackend):
    """The local backend."""

    _notes: LagNotes | None = None

    async def start(self) -> None:
        await super().start()
        if self._notes is None:
            self._notes = LagNotes()

    async def stop(self) -> None:
        if self._notes is not None:
            await self._notes.stop()
        await super().stop()


def settings(backend: type[WatchedNoop] | type[WatchedLocal], path: Path) -> dict[str, str]:
    """Of a worker that has it."""
    return {FILE: str(path), "HERMES_QUEUE_SANDBOX_BACKEND": f"{__name__}:{backend.__name__}"}
