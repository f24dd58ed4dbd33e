"""Mutual exclusion for builds of an asset or image, between the processes of a host.

A builder holds a file lock and touches the file while it lives. A builder that is suspended
(SIGSTOP, a debugger, a frozen control group) keeps the lock but stops touching the file: others
then build beside it, under the next lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from hermes_queue.disk.locks import lock, lock_holder
from hermes_queue.errors import EnvInfraError

BEAT_S = 3.0
SILENT_S = 30.0
"""A builder that has not touched its lock for this long counts as suspended."""
PLACES = 3
"""Builders of one asset at once; all but the last are suspended."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


@contextlib.asynccontextmanager
async def build_turn(
    path: Path, *, places: int = PLACES, is_finished: Callable[[], bool] = lambda: False
) -> AsyncIterator[int | None]:
    """Wait until no living process builds the asset of this lock file.

    The turn ends with the block.

    Yields the number of the lock, from 0, which no other process holds, or None if somebody else
    has finished the asset meanwhile.

    Raises:
        EnvInfraError: `places` builders are suspended; names them.
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
        "resume or end the suspended processes (kill -CONT PID, kill -9 PID)"
    )


async def _take(descriptor: int, is_finished: Callable[[], bool]) -> bool | None:
    """True: the lock is ours. False: the asset is finished. None: its holder is suspended."""
    pause_s, silent_s, stamp, looked = _FIRST_PAUSE_S, 0.0, 0, time.monotonic()
    while True:
        if lock(descriptor):
            return True
        if is_finished():
            return False
        # Without the time in which we did not look: we were suspended then ourselves, perhaps
        # together with the builder.
        before, looked = looked, time.monotonic()
        silent_s += min(looked - before, 2 * _LONGEST_PAUSE_S)
        if (beat := os.fstat(descriptor).st_mtime_ns) != stamp:
            stamp, silent_s = beat, 0.0
        if silent_s > SILENT_S:
            return None
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


async def _beat(descriptor: int) -> None:
    while True:
        with contextlib.suppress(OSError):  # A full or failing disk is the build's to report.
            os.utime(descriptor)
        await asyncio.sleep(BEAT_S)
