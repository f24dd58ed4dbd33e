"""The archive: groups that were deleted from Redis, in one directory of frames per run.

Workers archive groups before they trim them, so every group is in the stream, in the archive, or
for a moment in both; readers drop duplicates. Each process writes its own files, so several
hosts may share one directory.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from hermes_queue.disk.durable import make_directory, replaced
from hermes_queue.disk.frames import FrameLog, read_frames
from hermes_queue.errors import ConfigurationError
from hermes_queue.results.stored import StoredGroup

MAGIC = b"hermes-queue groups 1\n"
FILE_BYTES = 64 << 20
_NAME_MAX = 255
_HASHED = "~"
"""First character of names that are hashes; no run id begins with it."""
_RUN_ID = "run-id"
_OPEN = 16
"""Number of runs whose files stay open; groups of one run arrive close together."""


class ArchiveSink:
    """Writes groups below `directory`, which is created with the first group."""

    def __init__(self, directory: Path, *, file_bytes: int = FILE_BYTES) -> None:
        self.directory = directory
        self._file_bytes = file_bytes
        self._logs: OrderedDict[str, FrameLog] = OrderedDict()

    def store(self, groups: Iterable[StoredGroup]) -> None:
        """Archive the groups; they are durable on return.

        Raises:
            HermesQueueError: the disk is full, or the directory cannot be written. Groups before
                the first one that failed are archived.
        """
        for group in groups:
            log = self._log(group.fields["run_id"])
            log.append([group.pack()])
            if log.size_bytes >= self._file_bytes:
                self._logs.pop(group.fields["run_id"]).close()

    def close(self) -> None:
        """Close the files. Idempotent."""
        while self._logs:
            self._logs.popitem()[1].close()

    def _log(self, run_id: str) -> FrameLog:
        log = self._logs.pop(run_id, None)
        if log is None:
            name = f"{time.time_ns() // 1_000_000:015d}-{os.getpid()}-{secrets.token_hex(4)}.groups"
            log = FrameLog(_directory_of_writer(self.directory, run_id) / name, MAGIC)
        self._logs[run_id] = log
        if len(self._logs) > _OPEN:
            self._logs.popitem(last=False)[1].close()
        return log


def archived_runs(directory: Path) -> list[str]:
    """Ids of the runs that have groups in the archive."""
    if not directory.is_dir():
        return []
    names = [_run_of(path) for path in directory.iterdir() if path.is_dir()]
    return sorted(name for name in names if name is not None)


def directory_of(directory: Path, run_id: str) -> Path:
    """The directory of a run: its id, or a hash of it if the id is too long for a file name."""
    name = quote(run_id, safe="")
    if len(name) > _NAME_MAX:
        name = _HASHED + hashlib.sha256(run_id.encode()).hexdigest()
    return directory / name


def _directory_of_writer(directory: Path, run_id: str) -> Path:
    """`directory_of`, with a file that holds the run id if the name is a hash."""
    path = directory_of(directory, run_id)
    if path.name.startswith(_HASHED) and not (path / _RUN_ID).exists():
        try:
            make_directory(path)
            with replaced(path / _RUN_ID, path / f"{_RUN_ID}.{os.getpid()}") as draft:
                draft.write_bytes(run_id.encode())
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _run_of(path: Path) -> str | None:
    if not path.name.startswith(_HASHED):
        return unquote(path.name)
    try:
        return (path / _RUN_ID).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def read_archive(
    directory: Path, run_id: str | None = None, *, known: dict[Path, int] | None = None
) -> Iterator[StoredGroup]:
    """Yield archived groups, run by run, each in order of deletion; a group may come twice.

    Args:
        directory: the archive; if it does not exist, nothing is yielded.
        run_id: only this run.
        known: file -> offset up to which it was read before; only later frames are read, and the
            offsets are updated. Modification times would not do, since each host has its own
            clock.

    Raises:
        ConfigurationError: a file is damaged in its middle.
    """
    ends = {} if known is None else known
    for run in archived_runs(directory) if run_id is None else [run_id]:
        for path in sorted(directory_of(directory, run).glob("*.groups")):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for end, frame in read_frames(fd, ends.get(path, len(MAGIC)), path):
                    ends[path] = end
                    yield StoredGroup.unpack(frame)
            finally:
                os.close(fd)
