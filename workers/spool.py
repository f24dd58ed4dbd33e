"""Finished records on the worker's disk until Redis has them.

A record is on disk, fsynced, before anything else happens to its trajectory, so a crash or an
outage after the verifier has returned loses nothing. Records that are finished in the same moment
share a file, hence a sync. Each worker process has a separate directory, held by a lock; a later
worker on the host adopts directories whose owner is dead.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path

import msgpack

from hermes_queue.disk.durable import replaced
from hermes_queue.disk.locks import try_hold
from hermes_queue.settings import private_directory

SUFFIX = ".record"
"""Suffix of files to publish, each an encoded record; files set aside have another."""
SHARED_SUFFIX = ".records"
"""Suffix of files with several records to publish: a msgpack list of (file name, record)."""
SHARED_BYTES = 4 << 20
"""About the size of a shared file, which stays until its last record is published."""
_NAME_MAX = 247
"""Maximum length of a file's name, so that `set_aside` has room to rename it."""


class _File:
    """A file, deleted with the last of its `count` records."""

    def __init__(self, path: Path, count: int, known: dict[Path, _File]) -> None:
        self.path = path
        self.left = set(range(count))
        self._known = known
        known[path] = self

    def remove(self, place: int) -> None:
        self.left.discard(place)
        # A later attempt of the same trajectory may have replaced the file.
        if not self.left and self._known.get(self.path) is self:
            del self._known[self.path]
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SpooledRecord:
    """One record on disk, and the owner under whose lease it was made."""

    owner: str
    _file: _File
    _place: int = 0
    _shared: tuple[str, bytes] | None = None
    """Name of the file that it would have alone, and the record; None = it has a file alone."""

    @property
    def path(self) -> Path:
        """The file that holds it."""
        return self._file.path

    def body(self) -> bytes:
        """Return the encoded record."""
        return self._shared[1] if self._shared else self.path.read_bytes()

    def set_aside(self) -> Path:
        """Keep it in a file that is not published; returns the path. Safe to repeat.

        Raises:
            OSError: the disk is full or broken; it stays where it is.
        """
        if self._shared:
            name, body = self._shared
            target = self.path.with_name(name).with_suffix(".unknown")
            _write(target, body)
        else:
            target = self.path.with_suffix(".unknown")
            with suppress(FileNotFoundError):
                self.path.rename(target)
        self.drop()
        return target

    def drop(self) -> None:
        """Delete it: Redis has the record. Safe to repeat."""
        self._file.remove(self._place)

    @property
    def waits(self) -> bool:
        """Whether it has not been dropped."""
        return self._place in self._file.left


class Spool:
    """The spool of one worker process. Blocking; call it from a thread."""

    def __init__(self, root: Path, deployment: str, owner: str) -> None:
        """Open a directory below `root` for this deployment (Redis URL and prefix)."""
        digest = hashlib.sha256(deployment.encode()).hexdigest()[:16]
        self._base = private_directory(root / digest)
        self.owner = owner
        self._directory = self._base / owner
        self._own: dict[Path, _File] = {}
        self._abandoned: list[SpooledRecord] = []
        self._adopted: dict[Path, _File] = {}
        """Shared files of dead workers of which some records are published already."""
        self._shared_files = 0
        self._lock: int | None = None
        while self._lock is None:  # a sibling may adopt and remove the new directory first
            self._lock = self._take_lock(private_directory(self._directory))

    def put(self, trajectory_id: str, body: bytes) -> SpooledRecord:
        """Store one encoded record durably.

        Raises:
            OSError: the disk is full or broken; nothing is left behind.
        """
        target = self._directory / _name(trajectory_id)
        _write(target, body)
        return SpooledRecord(self.owner, _File(target, 1, self._own))

    def put_all(self, records: Sequence[tuple[str, bytes]]) -> list[SpooledRecord | OSError]:
        """Store encoded records, each given with its trajectory id, durably and with few syncs.

        Returns, for each, the stored record, or the error for which it could not be stored.
        """
        kept: list[SpooledRecord | OSError] = []
        for portion in _portions(records):
            try:
                kept += self._put_together(portion)
            except OSError:  # the disk may have room for some of them
                kept += [self._put_or_error(*record) for record in portion]
        return kept

    def _put_together(self, records: Sequence[tuple[str, bytes]]) -> list[SpooledRecord]:
        if len(records) == 1:
            return [self.put(*records[0])]
        named = [(_name(trajectory_id), body) for trajectory_id, body in records]
        self._shared_files += 1
        target = self._directory / f"{self._shared_files:06}{SHARED_SUFFIX}"
        _write(target, msgpack.packb(named))
        file = _File(target, len(named), self._own)
        return [SpooledRecord(self.owner, file, place, each) for place, each in enumerate(named)]

    def _put_or_error(self, trajectory_id: str, body: bytes) -> SpooledRecord | OSError:
        try:
            return self.put(trajectory_id, body)
        except OSError as error:
            return error

    def count(self) -> int:
        """Number of this process's records that wait for Redis."""
        return sum(len(file.left) for file in list(self._own.values()))

    def abandon(self, record: SpooledRecord) -> None:
        """Count a record that has not been dropped as a leftover: its task ends. Thread-safe."""
        if record.waits:
            self._abandoned.append(record)

    def leftovers(self, on_dead: Callable[[str], bool] | None = None) -> Iterator[SpooledRecord]:
        """Yield abandoned records, then those of dead workers of this host, oldest directory first.

        `on_dead` is called with each of these workers after its last record. Their empty
        directories are removed unless it returns False, and are found again then.
        """
        for record in list(self._abandoned):
            if record.waits:  # a later attempt may have replaced and dropped its file
                yield record
            if not record.waits:
                self._abandoned.remove(record)
        for directory in sorted(self._base.iterdir(), key=_changed):
            if directory == self._directory or not directory.is_dir():
                continue
            lock = self._take_lock(directory)
            if lock is None:
                continue
            try:
                yield from self._found(directory)
                if on_dead is None or on_dead(directory.name):
                    self._remove_if_empty(directory)
            finally:
                os.close(lock)

    def _found(self, directory: Path) -> Iterator[SpooledRecord]:
        owner = directory.name
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            yield SpooledRecord(owner, _File(path, 1, {}))
        for path in sorted(directory.glob(f"*{SHARED_SUFFIX}")):
            try:
                records = _unpacked(path.read_bytes())
            except (OSError, ValueError):  # whoever reads it as a record will report it
                yield SpooledRecord(owner, _File(path, 1, {}))
                continue
            file = self._adopted.get(path) or _File(path, len(records), self._adopted)
            for place, record in enumerate(records):
                if place in file.left:
                    yield SpooledRecord(owner, file, place, record)

    def close(self) -> None:
        """Release the directory. Records still in it are left for the next worker."""
        if self._lock is not None:
            self._remove_if_empty(self._directory)
            os.close(self._lock)
            self._lock = None

    @staticmethod
    def _take_lock(directory: Path) -> int | None:
        handle = None
        with suppress(FileNotFoundError):  # its owner removed it just now
            handle = try_hold(directory / "lock")
        if handle is None:
            return None
        # A sibling may have removed the directory, or made a new lock file, between open and
        # flock: then this lock guards a file that nobody else will ever look at.
        with suppress(FileNotFoundError):
            if os.stat(directory / "lock").st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)
        return None

    @staticmethod
    def _remove_if_empty(directory: Path) -> None:
        for part in directory.glob("*.part"):
            part.unlink(missing_ok=True)
        if not any(waiting(directory)):
            (directory / "lock").unlink(missing_ok=True)
            with suppress(OSError):
                directory.rmdir()


def waiting(directory: Path) -> Iterator[Path]:
    """Files in and below `directory` with records that are to be published."""
    for suffix in (SUFFIX, SHARED_SUFFIX):
        yield from directory.rglob(f"*{suffix}")


def _name(trajectory_id: str) -> str:
    name = trajectory_id.replace("/", "%2F")
    if len(name) > _NAME_MAX - len(SUFFIX):
        name = hashlib.sha256(name.encode()).hexdigest()
    return name + SUFFIX


def _write(target: Path, data: bytes) -> None:
    with replaced(target, target.with_suffix(".part")) as draft:
        draft.write_bytes(data)


def _portions(records: Sequence[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    ends = accumulate(len(body) for _, body in records)
    for _, portion in groupby(
        zip(records, ends, strict=True), lambda pair: pair[1] // SHARED_BYTES
    ):
        yield [record for record, _ in portion]


def _unpacked(data: bytes) -> list[tuple[str, bytes]]:
    """Raises ValueError: these are not the contents of a shared file."""
    try:
        return [(str(name), bytes(body)) for name, body in msgpack.unpackb(data)]
    except (TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"not a file of records: {error}") from error


def _changed(path: Path) -> float:
    """Time of a directory's last change; 0.0 if it no longer exists."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
