"""Files of JSON lines, as producers and the JSONL sink write them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hermes_plugins.view.lookup.base import LookedUp, Raw, by_sample
from hermes_plugins.view.records.raw import MAX_RECORD_BYTES, UnreadableRecord, decode_json
from hermes_queue.errors import InputError


class FilePlace:
    """One file of JSON lines. Only lines that have the id somewhere are decoded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = 0
        self._notes: list[str] = []

    @property
    def title(self) -> str:
        """See `LookupPlace`."""
        return f"{self._path} ({self._lines} lines)"

    def trajectory(self, name: str) -> LookedUp | None:
        """See `LookupPlace`; of several lines with this id, the last one."""
        found = self._matching("trajectory_id", name)
        return LookedUp(found[-1:], False, str(self._path), self._notes) if found else None

    def group(self, name: str) -> LookedUp | None:
        """See `LookupPlace`."""
        records = by_sample(self._matching("group_id", name))
        return LookedUp(records, True, str(self._path), self._notes) if records else None

    def _matching(self, field: str, name: str) -> list[Raw]:
        self._notes = []
        found = []
        wanted = name.encode(errors="replace")
        for number, line in enumerate(self._read(), start=1):
            self._lines = number
            if wanted not in line:
                continue
            if len(line) > MAX_RECORD_BYTES:
                self._notes.append(f"line {number}: longer than {MAX_RECORD_BYTES} bytes")
                continue
            try:
                raw = decode_json(line)
            except UnreadableRecord as error:
                self._notes.append(f"line {number}: {error}")
                continue
            if raw.get(field) == name:
                found.append(raw)
        return found

    def _read(self) -> Iterator[bytes]:
        """Lines; of one that is too long, its beginning, and the rest is left out."""
        try:
            with self._path.open("rb") as lines:
                if not stat.S_ISREG(os.fstat(lines.fileno()).st_mode):
                    raise InputError(f"{self._path}: is no regular file")
                while line := lines.readline(MAX_RECORD_BYTES + 1):
                    yield line
                    while len(line) > MAX_RECORD_BYTES and not line.endswith(b"\n"):
                        line = lines.readline(MAX_RECORD_BYTES + 1)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read: {error.strerror}") from error
