"""Files and directories that survive a power loss."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO


def put_whole(path: Path, data: bytes, *, draft: Path) -> None:
    """Write `data` to `draft` and rename it to `path`, which is complete or does not exist.

    Raises:
        OSError: the disk is full or broken; nothing is left behind.
    """
    try:
        with draft.open("wb") as file:
            file.write(data)
            flush(file)
        draft.rename(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make a directory and its parents; their names survive a power loss on return.

    Raises:
        OSError: it cannot be made.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def flush(file: IO[str] | IO[bytes]) -> None:
    """Write the buffers of `file`, and wait until they survive a power loss. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def append_line(path: Path, line: str) -> None:
    """Add a line that survives a power loss; several processes may do so. Raises OSError."""
    with path.open("a") as file:
        file.write(line + "\n")
        flush(file)


def sync_directory(path: Path) -> None:
    """Make the name of a new file durable, too."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
