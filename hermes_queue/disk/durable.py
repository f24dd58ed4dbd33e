"""Files and directories that survive a power loss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replaced(path: Path, draft: Path) -> Iterator[Path]:
    """Rename `draft`, which the block writes, to `path`, which is complete or as it was before.

    Raises:
        OSError: the disk is full or broken; nothing is left behind.
    """
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
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


def sync_tree(path: Path) -> None:
    """Make all files below a directory durable, which others wrote. Raises OSError."""
    for directory, _, names in os.walk(path):
        for name in names:
            with (Path(directory) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(directory))
    if path.exists():
        sync_directory(path.parent)
