"""Marks of files that others append to, which notice that a file was written anew."""

from __future__ import annotations

import os

from hermes_queue.view.sources.base import Mark

_BEFORE_BYTES = 64


def mark_at(fd: int, offset: int) -> Mark:
    """The mark of a file that has been read up to `offset`: the octets before it prove it."""
    return {"offset": offset, "before": _before(fd, offset)}


def resumed(fd: int, mark: Mark | None) -> int | None:
    """The offset up to which the file has been read; None if it is another one by now."""
    if mark is None:
        return None
    try:
        offset, before = int(mark["offset"]), str(mark["before"])
    except (KeyError, TypeError, ValueError):
        return None
    return offset if offset >= 0 and _before(fd, offset) == before else None


def _before(fd: int, offset: int) -> str:
    start = max(0, offset - _BEFORE_BYTES)
    return os.pread(fd, offset - start, start).hex()
