"""Locks on files. The kernel releases them when their process ends, even by SIGKILL.

A lock belongs to the open file: it is held as long as the descriptor is open, by this process or
by children that inherit it. The lock file itself is never deleted.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


def lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file at once; returns False if others hold the lock.

    Raises:
        OSError: the file system has no locks.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_hold(
    path: Path, *, shared: bool = False, create: bool = True, mode: int = 0o600
) -> int | None:
    """A descriptor that holds the lock of `path` until it is closed, or None if others hold it.

    Raises:
        OSError: the file cannot be opened or made; FileNotFoundError with `create` False.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, mode)
    try:
        if lock(descriptor, shared=shared):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


async def hold(path: Path, *, shared: bool = False, mode: int = 0o600) -> int:
    """Wait for the lock of `path` without occupying the event loop or a thread.

    Returns a descriptor that holds it until it is closed. Raises OSError: as `try_hold`.
    """
    pause_s = _FIRST_PAUSE_S
    while (descriptor := try_hold(path, shared=shared, mode=mode)) is None:
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    return descriptor


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of `path`; False if the file does not exist.

    Raises:
        OSError: the file cannot be opened.
    """
    try:
        descriptor = try_hold(path, create=False)
    except FileNotFoundError:
        return False
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def lock_holder(path: Path) -> str:
    """The process that holds a file's lock, as found in /proc, for people."""
    try:
        inode = f":{path.stat().st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].endswith(inode):
                process = Path("/proc", words[4])
                state = process.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                name = process.joinpath("comm").read_text().strip()
                stopped = ", stopped" if state in "Tt" else ""
                return f"process {words[4]} ({name}{stopped})"
    except (OSError, IndexError):
        pass
    return "an unknown process"
