"""Marks of files that others append to, which notice that a file was written anew."""

from __future__ import annotations

import hashlib
import os

from hermes_plugins.view.sources.base import Mark

_HEAD_BYTES = 4096
_BEFORE_BYTES = 64


def mark_at(fd: int, offset: int, state: os.stat_result, *, ended: bool = False) -> Mark:
    """The mark of a file that has been read up to `offset`.

    Args:
        fd: the file.
        offset: the first byte that has not been read.
        state: of the file, taken before it was read.
        ended: whether its end has been reached, and all that is before it was read.
    """
    mark = {"offset": offset, "octets": _octets(fd, offset), **_identity(state)}
    return mark | {"ended": True} if ended else mark


def ended(mark: Mark | None) -> bool:
    """Whether the end of the file had been reached."""
    return mark is not None and mark.get("ended") is True


def resumed(fd: int, mark: Mark | None, state: os.stat_result) -> int | None:
    """The offset up to which the file has been read; None if it is another one by now.

    It is the same one if it has the same inode, begins as it did, has the same octets before the
    mark and, without a new octet behind it, the same time.
    """
    if mark is None:
        return None
    offset, octets = mark.get("offset"), mark.get("octets")
    if not isinstance(offset, int) or not 0 <= offset <= state.st_size:
        return None
    if mark.get("inode") != state.st_ino:
        return None
    if offset == state.st_size and mark.get("time_ns") != state.st_mtime_ns:
        return None
    return offset if _octets(fd, offset) == octets else None


def unchanged(mark: Mark | None, state: os.stat_result) -> bool:
    """Whether nothing was written since the end of the file had been reached.

    What is behind the mark then is as little whole as it was.
    """
    return mark is not None and ended(mark) and _identity(state).items() <= mark.items()


def _identity(state: os.stat_result) -> Mark:
    return {"inode": state.st_ino, "size": state.st_size, "time_ns": state.st_mtime_ns}


def _octets(fd: int, offset: int) -> str:
    start = max(0, offset - _BEFORE_BYTES)
    head = os.pread(fd, min(offset, _HEAD_BYTES), 0)
    return hashlib.sha256(head + os.pread(fd, offset - start, start)).hexdigest()[:32]
