"""Findings of judges in files that a command line names, by trajectory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hermes_queue.bodies.findings import TranscriptFinding, read_findings
from hermes_queue.errors import InputError

logger = logging.getLogger(__name__)

FINDINGS_OF_ONE = 200
"""Findings about one trajectory that are shown."""
READING_SHARE = 0.1
"""Of the time, for a file that changes all the time and is slow to read."""
SLOW_S = 0.2
_Seen = tuple[int, int, int]


class FindingFiles:
    """The findings in some files. Files that change are read again, whole, when somebody asks.

    Args:
        paths: JSON lines, see `hermes_queue.bodies.findings`.

    Raises:
        InputError: a file cannot be read.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(dict.fromkeys(paths))
        self._lock = threading.Lock()
        self._files: dict[Path, tuple[_Seen, Mapping[str, list[TranscriptFinding]]]] = {}
        self._unreadable: dict[Path, str] = {}
        self.bad_lines: Mapping[Path, int] = {}
        """Lines of each file that are no findings, of files that have any."""
        self._next_read: dict[Path, float] = {}
        for path in self._paths:
            self._files[path] = _identity(path), self._timed(path)

    def of(self, trajectory_id: str) -> list[TranscriptFinding]:
        """The findings about a trajectory, in the order of the files; at most `FINDINGS_OF_ONE`.

        Those of a file that has gone or cannot be read any more stay as they were.
        """
        with self._lock:
            for path in self._paths:
                self._renew(path)
            files = [by_trajectory for _, by_trajectory in self._files.values()]
            found = [each for one in files for each in one.get(trajectory_id, ())]
        return found[:FINDINGS_OF_ONE]

    def _renew(self, path: Path) -> None:
        try:
            seen = _identity(path)
            if self._files[path][0] != seen and time.monotonic() >= self._next_read[path]:
                self._files[path] = seen, self._timed(path)
            self._unreadable.pop(path, None)
        except InputError as error:
            if self._unreadable.get(path) != str(error):
                logger.warning("%s", error, extra={"action": "findings_unreadable"})
            self._unreadable[path] = str(error)

    def _timed(self, path: Path) -> Mapping[str, list[TranscriptFinding]]:
        began = time.monotonic()
        try:
            return self._read(path)
        finally:
            took = time.monotonic() - began
            pause = took / READING_SHARE if took > SLOW_S else 0.0
            self._next_read[path] = began + pause

    def _read(self, path: Path) -> Mapping[str, list[TranscriptFinding]]:
        found: dict[str, dict[TranscriptFinding, None]] = {}
        count, first = 0, ""

        def left_out(message: str) -> None:
            nonlocal count, first
            count, first = count + 1, first or message[:500]

        for each in read_findings(path, on_error=left_out):
            of_one = found.setdefault(each.trajectory_id, {})
            if len(of_one) < FINDINGS_OF_ONE:
                of_one[each] = None
        others = {other: bad for other, bad in self.bad_lines.items() if other != path}
        self.bad_lines = {**others, path: count} if count else others
        if count:
            extra = {"action": "findings_left_out"}
            logger.warning("%d lines left out, the first: %s", count, first, extra=extra)
        return {name: list(of_one) for name, of_one in found.items()}


def _identity(path: Path) -> _Seen:
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns
