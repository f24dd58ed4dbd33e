"""A JSON-lines file whose format has no field for our ids; each id is written once nonetheless.

For `rows.jsonl`, the file `.rows.jsonl.index` records which trajectory each part of the file
came from and where the part ends. Lines are durable before the index names them, so lines behind
the last recorded end were never acknowledged and are removed on opening.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_queue.disk import locked as files
from hermes_queue.disk.frames import FrameLog
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import ScoredTrajectory
from hermes_queue.sinks.base import Closing

_MAGIC = b"hermes-queue lines 1\n"


class NotRepresentable(Exception):
    """A trajectory has no row in this format; the message gives the reason in a few words."""


DatasetRow = Mapping[str, Any]
Render = Callable[[ScoredTrajectory], DatasetRow | Sequence[DatasetRow]]


class LinesSink(Closing):
    """Appends the row that `render` makes of each trajectory to `path`.

    Args:
        path: ends in .jsonl; created with its parents if missing.
        render: makes the row, or several; raises `NotRepresentable` for a trajectory without one.
        kind: what the rows are, for the message that refuses another kind in one file.

    Raises:
        ConfigurationError: the path cannot be written, has another writer, holds rows of another
            kind, or lines that are not in its index (which stay unchanged).
    """

    def __init__(self, path: Path, render: Render, *, kind: str) -> None:
        if path.suffix != ".jsonl":
            raise ConfigurationError(f"{path}: rows are JSON lines; choose a file ending in .jsonl")
        self.path = path
        self._render = render
        self._kind = kind
        self._rendered: dict[str, bytes] = {}
        """Lines that `refusal` rendered and `write` has not received yet."""
        self.held: dict[str, str] = {}
        """See `DatasetSink.held`."""
        index = path.with_name(f".{path.name}.index")
        known = index.exists()
        self._fd = files.open_locked(path)
        self._index: FrameLog | None = None
        try:
            if not known and os.lseek(self._fd, 0, os.SEEK_END):
                raise ConfigurationError(
                    f"{path}: has lines but no index {index.name} beside it, so its contents "
                    "are unknown; choose another --out, this file was not changed"
                )
            self._index = FrameLog(index, _MAGIC)
            self._read_index(self._index)
        except BaseException:
            self.close()
            raise

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """See `Sink.write`. Trajectories that `refusal` refuses are left out."""
        rows: dict[str, str] = {}
        data = bytearray()
        for trajectory in trajectories:
            name = trajectory.trajectory_id
            if name in self.held or name in rows:
                continue
            if name in self._rendered or not self.refusal(trajectory):
                data += self._rendered[name]
                rows[name] = trajectory.instance_id
        self._rendered.clear()
        return self._append(data, rows)

    def _append(self, data: bytes | bytearray, rows: Mapping[str, str], **more: Any) -> int:
        """Store lines and the trajectories that they are made from; returns the number of lines."""
        if not rows or self._index is None:
            return 0
        start = os.lseek(self._fd, 0, os.SEEK_END)
        files.append(self._fd, self.path, data)
        entry = {"end": start + len(data), "rows": rows, "kind": self._kind, **more}
        try:
            self._index.append([json.dumps(entry, ensure_ascii=False).encode()])
        except BaseException:
            os.ftruncate(self._fd, start)
            raise
        self.held.update(rows)
        return data.count(b"\n")

    def refusal(self, trajectory: ScoredTrajectory) -> str:
        """The reason why the trajectory has no row in this format; "" if it has one."""
        try:
            made = self._render(trajectory)
            rows = [made] if isinstance(made, Mapping) else made
            self._rendered[trajectory.trajectory_id] = b"".join(map(line, rows))
        except NotRepresentable as reason:
            return str(reason)
        return ""

    def close(self) -> None:
        """See `Sink.close`."""
        if self._index:
            self._index.close()
            self._index = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_index(self, index: FrameLog) -> None:
        end = 0
        for frame in index:
            entry = json.loads(frame)
            if (kind := entry.get("kind", self._kind)) != self._kind:
                raise ConfigurationError(
                    f"{self.path}: holds rows of {kind}, these are of {self._kind}; choose "
                    "another --out"
                )
            end = entry["end"]
            self._recall(entry)
        size = os.lseek(self._fd, 0, os.SEEK_END)
        if size < end:
            raise ConfigurationError(
                f"{self.path}: has {size} bytes, but {end} by its index {index.path.name}: "
                "another program changed it; remove both, or choose another --out"
            )
        os.ftruncate(self._fd, end)

    def _recall(self, entry: Mapping[str, Any]) -> None:
        """Learn from an entry of the index what the file holds."""
        self.held.update(entry["rows"])


def line(row: DatasetRow) -> bytes:
    """The row as a line of the file.

    Raises:
        NotRepresentable: a model wrote half of a surrogate pair, which is no Unicode text.
    """
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise NotRepresentable("no Unicode text") from error
