"""Files of JSON lines, as producers and the JSONL sink write them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.raw import MAX_RECORD_BYTES, UnreadableRecord, decode_json
from hermes_plugins.view.sources.base import Batch, FoundRecord, Mark
from hermes_plugins.view.sources.places import octets_at, opened_regular, source_name
from hermes_plugins.view.sources.resuming import ended, mark_at, resumed, unchanged
from hermes_queue.errors import ConfigurationError

_BATCH_BYTES = 4 << 20
_BATCH_LINES = 64
_SEGMENT_BYTES = 2 << 20
"""A file is read from its end to its beginning in segments of this size: the newest lines first."""


class JsonlSource:
    """One file of JSON lines. Only whole lines are read, so a torn last one is read when it ends.

    Raises:
        ConfigurationError: the file cannot be opened, or is no regular file.
    """

    kind = "jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self.title = self._path.name
        self.name = source_name(self.kind, self._path)
        self.problems: list[str] = []
        try:
            with opened_regular(self._path):
                pass
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error

    def scan(self, marks: Mapping[str, Mark | None]) -> Iterator[Batch]:
        """See `RecordSource.scan`; the last lines come first."""
        self.problems = []
        try:
            with opened_regular(self._path) as fd:
                yield from self._scan(fd, marks.get(self.title))
        except OSError as error:
            if self.title in marks:
                yield Batch(self.title, removed=True)
            self.problems = [f"{self.title}: cannot be read: {error.strerror}"]

    def read(self, location: Location) -> Mapping[str, Any]:
        """See `RecordSource.read`."""
        return decode_json(octets_at(opened_regular(self._path), location))

    def close(self) -> None:
        """See `RecordSource.close`."""

    def _scan(self, fd: int, mark: Mark | None) -> Iterator[Batch]:
        state = os.fstat(fd)
        at, low = resumed(fd, mark, state), _low(mark)
        if at is None:
            at, mark = _segment(fd, state.st_size), None
            low = at
            yield Batch(self.title, mark=mark_at(fd, at, state) | {"low": low}, begins=True)
        if not low and unchanged(mark, state):
            return
        begun, found = at, []
        for record, end in self._records(fd, at, state.st_size):
            found += record
            at = end
            if at - begun > _SEGMENT_BYTES or len(found) >= _BATCH_LINES:
                yield Batch(self.title, found, mark_at(fd, at, state) | {"low": low})
                begun, found = at, []
        if found or at > begun or not (low or ended(mark)):
            yield self._batch(fd, found, at, low, state)
        while low > 0:  # each batch goes on, since any may be the last one of this call
            end, low = low, _segment(fd, low)
            found = [each for record, _ in self._records(fd, low, end) for each in record]
            yield self._batch(fd, found, at, low, state)

    def _batch(
        self, fd: int, found: list[FoundRecord], at: int, low: int, state: os.stat_result
    ) -> Batch:
        mark = mark_at(fd, at, state, ended=not low) | {"low": low}
        return Batch(self.title, found, mark, ends=not low)

    def _records(self, fd: int, start: int, end: int) -> Iterator[tuple[list[FoundRecord], int]]:
        """The record of each whole line, if it has one, and the end of the line."""
        for offset, line, length in _lines(fd, start, end):
            if line is None:
                found = [self._damaged(offset, length, _too_large(length))]
            elif line.strip(b" \t\r\n\0"):
                found = [self._found(offset, line)]
            else:
                found = []
            yield found, offset + length

    def _found(self, offset: int, line: bytes) -> FoundRecord:
        try:
            raw = decode_json(line, numbers=False)
        except UnreadableRecord as error:
            return self._damaged(offset, len(line), str(error))
        return FoundRecord(self._location(offset, len(line)), raw, bytes=len(line))

    def _damaged(self, offset: int, length: int, problem: str) -> FoundRecord:
        return FoundRecord(self._location(offset, length), None, problem, length)

    def _location(self, offset: int, length: int) -> Location:
        return Location(self.name, self.title, offset, length)


def _lines(fd: int, start: int, size: int) -> Iterator[tuple[int, bytes | None, int]]:
    """(offset, line, length) of each whole line; the line is None if it is too long to be read.

    A last line without an end is whole if it is a JSON object, to which nothing can be added.
    """
    held, at = b"", start
    """Bytes that are read and not yielded, and where they begin."""
    while at + len(held) < size:
        chunk = os.pread(fd, min(_BATCH_BYTES, size - at - len(held)), at + len(held))
        if not chunk:
            break
        searched = len(held)
        held += chunk
        begin = 0
        while (end := held.find(b"\n", max(begin, searched))) >= 0:
            yield at + begin, held[begin : end + 1], end + 1 - begin
            begin = end + 1
        held, at = held[begin:], at + begin
        if len(held) > MAX_RECORD_BYTES:
            length = _length(fd, at, size)
            if length is None:
                return
            yield at, None, length
            held, at = b"", at + length
    if held and held.rstrip(b" \t\r\0").endswith(b"}") and _is_whole(held):
        yield at, held, len(held)


def _low(mark: Mark | None) -> int:
    """The offset from which on the file has been read; what is before it comes last."""
    low = (mark or {}).get("low")
    return low if isinstance(low, int) and low > 0 else 0


def _segment(fd: int, end: int) -> int:
    """Where the lines begin that end before `end`: some megabytes, and at least one line."""
    back = _SEGMENT_BYTES
    while back < end:
        start = _line_start(fd, end - back, end)
        if start < end:
            return start
        back *= 4
    return 0


def _line_start(fd: int, at: int, end: int) -> int:
    """The first line that begins behind `at` and before `end`; `end` if there is none."""
    while at < end and (chunk := os.pread(fd, min(_BATCH_BYTES, end - at), at)):
        if (found := chunk.find(b"\n")) >= 0:
            return at + found + 1
        at += len(chunk)
    return end


def _length(fd: int, start: int, size: int) -> int | None:
    """Length of the line that begins at `start`, read piece by piece; None if it has no end."""
    at = start
    while at < size and (chunk := os.pread(fd, _BATCH_BYTES, at)):
        if (end := chunk.find(b"\n")) >= 0:
            return at + end + 1 - start
        at += len(chunk)
    return None


def _is_whole(line: bytes) -> bool:
    try:
        decode_json(line, numbers=False)
    except UnreadableRecord:
        return False
    return True


def _too_large(length: int) -> str:
    return f"a line of {length} bytes, of which {MAX_RECORD_BYTES} are shown"
