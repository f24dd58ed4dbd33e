"""Finished records on the worker's disk until Redis has them.

A record is on disk, fsynced, before anything else happens to its trajectory, so a crash or an
outage after the verifier has returned loses nothing. Each worker process has a separate
directory, held by a lock; a later worker on the host adopts directories whose owner is dead.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_queue.disk.durable import replaced
from hermes_queue.disk.locks import try_hold
from hermes_queue.settings import private_directory

SUFFIX = ".record"
"""Suffix of files to publish; files set aside have another."""
_NAME_MAX = 247
"""Maximum length of a file's name, so that `set_aside` has room to rename it."""


@dataclass(frozen=True, slots=True)
class SpooledRecord:
    """One record on disk, and the owner under whose lease it was made."""

    path: Path
    owner: str

    def body(self) -> bytes:
        """Return the encoded record."""
        return self.path.read_bytes()

    def set_aside(self) -> Path:
        """Keep the file, but do not publish it again; returns its new path. Safe to repeat."""
        target = self.path.with_suffix(".unknown")
        with suppress(FileNotFoundError):
            self.path.rename(target)
        return target

    def drop(self) -> None:
        """Delete the file: Redis has the record. Safe to repeat."""
        self.path.unlink(missing_ok=True)


class Spool:
    """The spool of one worker process. Blocking; call it from a thread."""

    def __init__(self, root: Path, deployment: str, owner: str) -> None:
        """Open a directory below `root` for this deployment (Redis URL and prefix)."""
        digest = hashlib.sha256(deployment.encode()).hexdigest()[:16]
        self._base = private_directory(root / digest)
        self.owner = owner
        self._directory = self._base / owner
        self._lock: int | None = None
        while self._lock is None:  # a sibling may adopt and remove the new directory first
            self._lock = self._take_lock(private_directory(self._directory))

    def put(self, trajectory_id: str, body: bytes) -> SpooledRecord:
        """Store one encoded record durably.

        Raises:
            OSError: the disk is full or broken; nothing is left behind.
        """
        name = trajectory_id.replace("/", "%2F")
        if len(name) > _NAME_MAX - len(SUFFIX):
            name = hashlib.sha256(name.encode()).hexdigest()
        target = self._directory / (name + SUFFIX)
        with replaced(target, target.with_suffix(".part")) as draft:
            draft.write_bytes(body)
        return SpooledRecord(target, self.owner)

    def count(self) -> int:
        """Number of this process's records that wait for Redis."""
        return sum(1 for _ in self._directory.glob(f"*{SUFFIX}"))

    def leftovers(self, on_dead: Callable[[str], None] | None = None) -> Iterator[SpooledRecord]:
        """Yield the records of dead workers of this host, oldest directory first.

        `on_dead` is called with each of these workers after its last record. Their empty
        directories are removed.
        """
        for directory in sorted(self._base.iterdir(), key=_changed):
            if directory == self._directory or not directory.is_dir():
                continue
            lock = self._take_lock(directory)
            if lock is None:
                continue
            try:
                for path in sorted(directory.glob(f"*{SUFFIX}")):
                    yield SpooledRecord(path, directory.name)
                if on_dead:
                    on_dead(directory.name)
                self._remove_if_empty(directory)
            finally:
                os.close(lock)

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
        if not any(directory.glob(f"*{SUFFIX}")):
            (directory / "lock").unlink(missing_ok=True)
            with suppress(OSError):
                directory.rmdir()


def _changed(path: Path) -> float:
    """Time of a directory's last change; 0.0 if it no longer exists."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
