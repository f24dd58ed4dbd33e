"""Files of a command line, and places in them, which may change or go at any time."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.raw import MAX_RECORD_BYTES, UnreadableRecord
from hermes_plugins.view.sources.base import RecordGone


def source_name(kind: str, path: Path) -> str:
    """The name of a source of files; the same in each process that has the same files."""
    return f"{kind}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"


def no_source(path: Path) -> str:
    """Why nothing can be read from a path that is neither a file nor a directory, for people."""
    there = "is neither a file nor a directory"
    return f"{path}: {there if path.exists() else 'there is no such file or directory'}"


@contextmanager
def opened_regular(path: str | os.PathLike[str], *, folder: int | None = None) -> Iterator[int]:
    """A descriptor to read a file with, below the directory `folder` if there is one.

    Raises:
        OSError: it cannot be opened, or is a link, a pipe, a device.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "it is no regular file")
        yield fd
    finally:
        os.close(fd)


def octets_at(opened: AbstractContextManager[int], location: Location) -> bytes:
    """What is at a location of the file that `opened` opens.

    Raises:
        UnreadableRecord: it is too much.
        RecordGone: the file cannot be opened, or has become shorter.
    """
    if location.length > MAX_RECORD_BYTES:
        raise UnreadableRecord(f"{location.length} bytes, of which {MAX_RECORD_BYTES} are shown")
    try:
        with opened as fd:
            found = os.pread(fd, location.length, location.offset)
    except OSError as error:
        raise RecordGone(f"{location.file}: cannot be read: {error.strerror}") from error
    if len(found) < location.length:
        raise RecordGone(f"{location.file} has become shorter")
    return found
