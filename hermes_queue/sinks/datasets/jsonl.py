"""One `ScoredTrajectory` per line of a file, appended, each id once.

When `write` returns, its trajectories are on disk. Every line is complete, except that power
loss or a full disk may truncate the last one; it is removed when the file is opened again, and
its trajectory is written again.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from hermes_queue.disk import locked as files
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import ScoredTrajectory
from hermes_queue.sinks.base import Closing, Format

logger = logging.getLogger(__name__)

_LINE_START = b'{"schema_version":'
_FOREIGN_SUFFIXES = frozenset({".parquet", ".gz", ".zst", ".csv", ".json"})
_ID = re.compile(
    rb'\{"schema_version":\d+,"run_id":"[^"\\]+","group_id":"[^"\\]+","trajectory_id":"([^"\\]+)",'
    rb'"sample_index":\d+,"group_size":\d+,"env":"[^"\\]*","instance_id":("(?:[^"\\]|\\.)*")'
)
"""The beginning of our own lines; parsing a 100 KB record to find its id would be slow."""


class JsonlSink(Closing):
    """Appends to `path`, which is created with its parents if missing.

    Raises:
        ConfigurationError: the path cannot be written, has another writer, or holds something
            other than trajectories (which stays unchanged).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.repaired_bytes = 0
        """Size of the truncated last line that was removed on opening."""
        self.written = 0
        """Trajectories added since the file was opened."""
        if path.suffix in _FOREIGN_SUFFIXES:
            raise ConfigurationError(
                f"{path}: results are written as JSON lines; choose a file that ends in .jsonl"
            )
        self._fd = files.open_locked(path)
        try:
            self.held = self._scan()
            """See `DatasetSink.held`."""
        except BaseException:
            self.close()
            raise

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """See `Sink.write`."""
        new = {t.trajectory_id: t for t in trajectories if t.trajectory_id not in self.held}
        if not new:
            return 0
        data = b"".join(t.to_json().encode() + b"\n" for t in new.values())
        files.append(self._fd, self.path, data)
        self.held.update((t.trajectory_id, t.instance_id) for t in new.values())
        self.written += len(new)
        return len(new)

    def close(self) -> None:
        """See `Sink.close`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _scan(self) -> dict[str, str]:
        """The ids in the file, with their instances; repairs the end of the file."""
        ids: dict[str, str] = {}
        size = 0
        with open(self._fd, "rb", closefd=False) as stream:
            for number, line in enumerate(stream, start=1):
                if not line.endswith(b"\n"):
                    self._repair(line, size, number, ids)
                    break
                size += len(line)
                if line.strip():
                    ids.update([self._id_of(line, number)])
        return ids

    def _id_of(self, line: bytes, number: int) -> tuple[str, str]:
        match = _ID.match(line)
        if match:
            return match[1].decode(), json.loads(match[2])
        try:
            record = json.loads(line)
            return str(record["trajectory_id"]), str(record["instance_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{self.path}:{number}: is not a trajectory record; choose another --out, "
                "this file was not changed"
            ) from error

    def _repair(self, line: bytes, start: int, number: int, ids: dict[str, str]) -> None:
        """Complete a last line that has no newline, or remove it."""
        written = line.rstrip(b"\0")  # a power loss can leave space that was never filled
        if not written.startswith(_LINE_START[: len(written)]):
            self._id_of(line, number)
        try:
            json.loads(line)
        except ValueError:
            self.repaired_bytes = len(line)
            os.ftruncate(self._fd, start)
            extra = {"action": "jsonl_repaired", "path": str(self.path), "bytes": len(line)}
            text = "%s:%d: removed a truncated last line of %d bytes"
            logger.warning(text, self.path, number, len(line), extra=extra)
            return
        ids.update([self._id_of(line, number)])
        os.lseek(self._fd, 0, os.SEEK_END)
        files.write_all(self._fd, b"\n")


FORMAT = Format(
    help="Whole records, one JSON object per line of the file OUT.",
    open=lambda out, options, choice: JsonlSink(out),
    keeps_failed=True,
    keeps_side=True,
)
