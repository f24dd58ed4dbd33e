"""Finished records on the worker's disk until Redis has them.

A record is on disk, fsynced, before anything else happens to its trajectory, so a crash
or an outage after the verifier returned costs nothing. Each worker process has a
directory of its own, held by a lock; a later worker on the host adopts the directories
whose owner is gone.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_queue.disk.durable import put_whole
from hermes_queue.disk.locks import try_hold
from hermes_queue.settings import private_directory

logger = logging.getLogger(__name__)

SUFFIX = ".record"
"""Of the files that are published; those that are set aside have another."""
_NAME_MAX = 247
"""Of a file, so that `set_aside` has room to name it otherwise."""


@dataclass(frozen=True, slots=True)
class SpooledRecord:
    """One record on disk, and the owner under whose lease it was made."""

    path: Path
    owner: str

    def body(self) -> bytes:
        """The encoded record."""
        return self.path.read_bytes()

    def set_aside(self) -> Path:
        """Keep the file, but do not look at it again; returns where it is. May be repeated."""
        target = self.path.with_suffix(".unknown")
        with suppress(FileNotFoundError):
            self.path.rename(target)
        return target

    def drop(self) -> None:
        """Forget it: Redis has it. Repeating this does nothing."""
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
        while self._lock is None:  # a sibling may take the new directory for an abandoned one
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
        put_whole(target, body, draft=target.with_suffix(".part"))
        return SpooledRecord(target, self.owner)

    def count(self) -> int:
        """Records of this process that wait for Redis."""
        return sum(1 for _ in self._directory.glob(f"*{SUFFIX}"))

    def leftovers(self, on_dead: Callable[[str], None] | None = None) -> Iterator[SpooledRecord]:
        """Records of dead workers of this host, oldest directory first.

        `on_dead` hears of each of these workers after its last record. Their empty directories
        are removed on the way.
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
        """Give the directory up. Records still in it are left for the next worker."""
        if self._lock is not None:
            self._remove_if_empty(self._directory)
            os.close(self._lock)
            self._lock = None

    @staticmethod
    def _take_lock(directory: Path) -> int | None:
        try:
            handle = try_hold(directory / "lock")
        except FileNotFoundError:  # its owner removed it just now
            return None
        if handle is None:
            return None
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
    """When a directory changed last; 0.0 when it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
