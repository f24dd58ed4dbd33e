"""Files of sinks: locked, appended to durably, replaced atomically."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_queue.disk.durable import make_directory, replaced, sync_directory
from hermes_queue.disk.locks import lock
from hermes_queue.errors import ConfigurationError, HermesQueueError


def open_locked(path: Path, *, remedy: str = "wait for it or choose another --out") -> int:
    """A locked descriptor to read and append to `path`, created with its parents.

    `remedy` is what to do if another process has it.

    Raises:
        ConfigurationError: it cannot be written, is no regular file, or has another writer.
    """
    try:
        make_directory(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigurationError(f"{path}: is not a regular file; results are read back from it")
    if not lock(fd):
        os.close(fd)
        raise ConfigurationError(f"{path}: another process is writing to it; {remedy}")
    sync_directory(path.parent)
    return fd


_GROUP_LOST = (
    "nothing of this group was kept; make room and run it again (a producer: with the same "
    "--run-id)"
)


def append(fd: int, path: Path, data: bytes | bytearray, *, consequence: str = _GROUP_LOST) -> None:
    """Append `data`; on return it survives a power loss. After an error none of it is in the file.

    `consequence` is what an error means, and what to do about it.

    Raises:
        HermesQueueError: the disk is full, or the device failed.
    """
    start = os.lseek(fd, 0, os.SEEK_END)
    try:
        write_all(fd, data)
        os.fsync(fd)
    except OSError as error:
        os.ftruncate(fd, start)
        raise HermesQueueError(
            f"{path}: cannot be written: {error.strerror}; {consequence}"
        ) from error


def cut(fd: int, path: Path, size: int) -> None:
    """Remove all bytes from `size` on, durably.

    Raises:
        HermesQueueError: the device failed; they may be there or not.
    """
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    except OSError as error:
        raise HermesQueueError(f"{path}: cannot be cut: {error.strerror}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden file to fill; it is renamed to `path` if the block succeeds.

    Raises:
        HermesQueueError: it could not be written; `path` is unchanged.
    """
    try:
        with replaced(path, path.with_name(f".{path.name}.tmp")) as draft:
            yield draft
    except OSError as error:
        raise HermesQueueError(f"{path}: cannot be written: {error}") from error


def read_whole(fd: int, size: int, offset: int) -> bytes:
    """`size` bytes at `offset`, fewer at the end of the file."""
    parts = []
    while size > 0 and (part := os.pread(fd, size, offset)):
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write all of `data`, in as many system calls as it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
