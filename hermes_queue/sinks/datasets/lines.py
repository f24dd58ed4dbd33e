"""A JSON-lines file whose format has no field for our ids; each id is written once nonetheless.

For `rows.jsonl`, the file `.rows.jsonl.index` records which trajectory each part of the file
came from and where the part ends. Lines are durable before the index names them, so lines behind
the last recorded end were never acknowledged and are removed on opening.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hermes_queue.disk import locked as files
from hermes_queue.disk.frames import FrameLog
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import ScoredTrajectory

_MAGIC = b"hermes-queue lines 1\n"


class NotRepresentable(Exception):
    """A trajectory has no row in this format; the message gives the reason in a few words."""


Render = Callable[[ScoredTrajectory], Mapping[str, Any]]


class LinesSink:
    """Appends the row that `render` makes of each trajectory to `path`.

    Args:
        path: ends in .jsonl; created with its parents if missing.
        render: makes the row; raises `NotRepresentable` for a trajectory without one.

    Raises:
        ConfigurationError: the path cannot be written, has another writer, or holds lines that
            are not in its index (which stay unchanged).
    """

    def __init__(self, path: Path, render: Render) -> None:
        if path.suffix != ".jsonl":
            raise ConfigurationError(f"{path}: rows are JSON lines; choose a file ending in .jsonl")
        self.path = path
        self.written = 0
        """Rows added since the file was opened."""
        self.unfit: Counter[str] = Counter()
        """Trajectories that have no row in this format, by reason."""
        self._render = render
        self._rendered: dict[str, bytes] = {}
        """Lines that `refusal` rendered and `write` has not received yet."""
        self._held: dict[str, str] = {}
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

    @property
    def held(self) -> Mapping[str, str]:
        """See `DatasetSink.held`."""
        return self._held

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """See `Sink.write`.

        Trajectories without a row that `refusal` has not seen are counted in `unfit`.
        """
        rows: dict[str, str] = {}
        data = bytearray()
        for trajectory in trajectories:
            if trajectory.trajectory_id in self._held or trajectory.trajectory_id in rows:
                continue
            try:
                data += self._rendered.get(trajectory.trajectory_id) or self._line(trajectory)
            except NotRepresentable as reason:
                self.unfit[str(reason)] += 1
                continue
            rows[trajectory.trajectory_id] = trajectory.instance_id
        self._rendered.clear()
        if not rows or self._index is None:
            return 0
        start = os.lseek(self._fd, 0, os.SEEK_END)
        files.append(self._fd, self.path, data)
        try:
            self._index.append([_entry(start + len(data), rows)])
        except BaseException:
            os.ftruncate(self._fd, start)
            raise
        self._held.update(rows)
        self.written += len(rows)
        return len(rows)

    def refusal(self, trajectory: ScoredTrajectory) -> str:
        """The reason why the trajectory has no row in this format; "" if it has one."""
        try:
            self._rendered[trajectory.trajectory_id] = self._line(trajectory)
        except NotRepresentable as reason:
            return str(reason)
        return ""

    def _line(self, trajectory: ScoredTrajectory) -> bytes:
        return json.dumps(self._render(trajectory), ensure_ascii=False).encode() + b"\n"

    def close(self) -> None:
        """See `Sink.close`."""
        if self._index:
            self._index.close()
            self._index = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LinesSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_index(self, index: FrameLog) -> None:
        end = 0
        for frame in index:
            entry = json.loads(frame)
            end = entry["end"]
            self._held.update(entry["rows"])
        size = os.lseek(self._fd, 0, os.SEEK_END)
        if size < end:
            raise ConfigurationError(
                f"{self.path}: has {size} bytes, but {end} by its index {index.path.name}: "
                "another program changed it; remove both, or choose another --out"
            )
        os.ftruncate(self._fd, end)


def _entry(end: int, rows: Mapping[str, str]) -> bytes:
    return json.dumps({"end": end, "rows": rows}, ensure_ascii=False).encode()
