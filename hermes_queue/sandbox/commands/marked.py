"""One stream of a command, up to the mark that its wrapper writes at the command's end."""

from __future__ import annotations

import time

from hermes_queue.sandbox.host.execution import HeadTail

MAX_NOTE_BYTES = 200
"""Longest note after a mark; a longer one is no note of ours."""


class MarkedStream:
    """What arrives before the mark is kept, within a cap; later bytes are dropped.

    Those are of background processes. A mark may be followed by a note that ends with a NUL: what
    the wrapper reports.
    """

    def __init__(self, cap: int, mark: bytes, *, has_note: bool = False) -> None:
        """An empty `mark`: all of the stream is kept. `has_note`: a note follows the mark."""
        self.kept = HeadTail(cap)
        self.last = time.monotonic()
        """When bytes arrived last (monotonic clock)."""
        self.is_complete = False
        """Whether the mark and its note have arrived."""
        self.note = b""
        self._mark, self._has_note = mark, has_note
        self._held = b""
        """What may be the beginning of a mark; after it, of its note."""
        self._is_marked = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.last = time.monotonic()
        if self.is_complete:
            return
        data = self._held + data
        if not self._is_marked:
            data = self._keep(data)
        if self._is_marked:
            self._read_note(data)
        else:
            self._held = data

    def _keep(self, data: bytes) -> bytes:
        """Keep the data before the mark; returns what is left of it."""
        if self._mark and self._mark in data:
            before, _, after = data.partition(self._mark)
            self.kept.feed(before)
            self._is_marked = True
            return after
        sure = len(data) - overlap(data, self._mark)
        self.kept.feed(data[:sure])
        return data[sure:]

    def _read_note(self, data: bytes) -> None:
        note, end, _ = data.partition(b"\0") if self._has_note else (b"", b"\0", b"")
        self._held = note
        if end:
            self.note, self.is_complete = note, True
        elif len(note) > MAX_NOTE_BYTES:
            self.is_complete = True

    def end(self) -> None:
        """The stream has ended."""
        if not self._is_marked:
            self.kept.feed(self._held)
            self._held = b""


def overlap(data: bytes, mark: bytes) -> int:
    """Length of the longest end of `data` that begins `mark`, which is not in it."""
    for size in range(min(len(data), len(mark) - 1), 0, -1):
        if data.endswith(mark[:size]):
            return size
    return 0
