"""Whose turn it is to build an asset, among the processes of a host.

A builder holds a file lock and touches the file while it lives. One that is suspended (SIGSTOP,
a debugger, a frozen control group) does not let go, but does not touch it either: others then
build beside it, under the next lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from hermes_queue.disk.locks import lock
from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.host.paths import lock_holder

BEAT_S = 3.0
SILENT_S = 30.0
"""After which a builder that did not touch its lock is taken for suspended."""
PLACES = 3
"""Builders of one asset at once, all but the last of them suspended."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


@contextlib.asynccontextmanager
async def build_turn(
    path: Path, *, places: int = PLACES, is_finished: Callable[[], bool] = lambda: False
) -> AsyncIterator[int | None]:
    """Wait until nobody who lives builds the asset of this lock file; the turn ends with the block.

    Gives the number of the lock that was had, from 0, of which no other process has the same, or
    None when somebody else has finished the asset meanwhile.

    Raises:
        EnvInfraError: `places` builders are suspended; says which.
    """
    paths = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, places))]
    for number, each in enumerate(paths):
        descriptor = os.open(each, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            taken = await _take(descriptor, is_finished)
            if taken is None:
                continue
            beat = asyncio.create_task(_beat(descriptor))
            try:
                yield number if taken else None
            finally:
                beat.cancel()
            return
        finally:
            os.close(descriptor)
    holders = ", ".join(map(lock_holder, paths))
    raise EnvInfraError(
        f"{path.stem} is being built by {holders}, without a sign of life for {SILENT_S:g} s: "
        "resume or end what is suspended (kill -CONT PID, kill -9 PID)"
    )


async def _take(descriptor: int, is_finished: Callable[[], bool]) -> bool | None:
    """True: the lock is ours. False: no need. None: its holder gives no sign of life."""
    pause_s, silence = _FIRST_PAUSE_S, _Silence()
    while True:
        if lock(descriptor):
            return True
        if is_finished():
            return False
        if silence.seconds(os.fstat(descriptor).st_mtime_ns) > SILENT_S:
            return None
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


class _Silence:
    """For how long a time stamp has not changed while we looked.

    By the monotonic clock, and without the time in which we did not look: then we were
    suspended ourselves, perhaps together with the builder.
    """

    def __init__(self) -> None:
        self._stamp = 0
        self._seen = time.monotonic()
        self._silent_s = 0.0

    def seconds(self, stamp: int) -> float:
        now = time.monotonic()
        self._silent_s += min(now - self._seen, 2 * _LONGEST_PAUSE_S)
        if stamp != self._stamp:
            self._stamp, self._silent_s = stamp, 0.0
        self._seen = now
        return self._silent_s


async def _beat(descriptor: int) -> None:
    while True:
        with contextlib.suppress(OSError):  # A full or failing disk is the build's to report.
            os.utime(descriptor)
        await asyncio.sleep(BEAT_S)
