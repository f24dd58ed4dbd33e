"""The files of a task folder: checked, hashed and copied without leaving the folder. Blocking."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path, PurePosixPath
from typing import Literal

from hermes_queue.errors import EnvBug

MAX_ENTRIES = 50_000
MAX_BYTES = 2 << 30
MAX_DEPTH = 64
_BLOCK = 1 << 20
_IGNORED = frozenset({".git", ".hg", ".svn", "__pycache__", ".DS_Store"})
"""Entries that are no part of a task."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One file, link or folder below a task folder."""

    name: str
    """Relative to the folder, with slashes."""
    kind: Literal["file", "link", "folder"]
    executable: bool = False
    size_bytes: int = 0
    target: str = ""
    """Of a link; relative, and inside the folder."""


def entries(root: Path) -> list[FolderEntry]:
    """All entries below `root`, sorted by name, folders before what is in them.

    Raises:
        EnvBug: a device, pipe or socket, a link that leaves the folder, a name that UTF-8 cannot
            carry, or more than the limits of this module.
    """
    found: list[FolderEntry] = []
    total = 0
    for entry in _walk(root, PurePosixPath()):
        found.append(entry)
        total += entry.size_bytes
        if len(found) > MAX_ENTRIES or total > MAX_BYTES:
            raise EnvBug(
                f"{root}: a task folder has at most {MAX_ENTRIES} entries and {MAX_BYTES} bytes"
            )
    return sorted(found, key=lambda entry: PurePosixPath(entry.name).parts)


def digest(root: Path, found: list[FolderEntry] | None = None) -> str:
    """Hex SHA-256 over names, executable bits, contents and links of the folder's entries.

    Raises:
        EnvBug: as `entries`, or a file changed its kind meanwhile.
    """
    whole = hashlib.sha256()
    for entry in entries(root) if found is None else found:
        mark = "x" if entry.executable else entry.kind[0]
        content = entry.target.encode()
        if entry.kind == "file":
            content = _hash_file(root, entry)
        name = entry.name.encode()
        whole.update(f"{mark} {len(name)} {len(content)} ".encode() + name + content)
    return whole.hexdigest()


def copy(root: Path, target: Path) -> None:
    """Copy the entries of `root` into the new folder `target`, with plain modes.

    Raises:
        EnvBug: as `entries`.
        OSError: the disk failed.
    """
    target.mkdir(mode=0o755)
    for entry in entries(root):
        place = target / entry.name
        if entry.kind == "folder":
            place.mkdir()
            place.chmod(0o755)  # whatever the umask is: images have these modes
        elif entry.kind == "link":
            place.symlink_to(entry.target)
        else:
            mode = 0o755 if entry.executable else 0o644
            with _opened(root, entry) as source, place.open("xb") as copied:
                shutil.copyfileobj(source, copied, _BLOCK)
                os.fchmod(copied.fileno(), mode)


def _walk(root: Path, below: PurePosixPath) -> Iterator[FolderEntry]:
    if len(below.parts) > MAX_DEPTH:
        raise EnvBug(f"{root / below}: nested deeper than {MAX_DEPTH} folders")
    try:
        listed = list(os.scandir(root / below))
    except OSError as error:
        raise EnvBug(f"{root / below}: cannot be read: {error.strerror}") from error
    for each in listed:
        if each.name in _IGNORED:
            continue
        name = str(below / each.name)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise EnvBug(f"{root}: the name {name!a} is not UTF-8; rename it") from None
        state = each.stat(follow_symlinks=False)
        if stat.S_ISDIR(state.st_mode):
            yield FolderEntry(name, "folder")
            yield from _walk(root, below / each.name)
        elif stat.S_ISLNK(state.st_mode):
            yield FolderEntry(name, "link", target=_target(root, name))
        elif stat.S_ISREG(state.st_mode):
            yield FolderEntry(name, "file", bool(state.st_mode & 0o100), state.st_size)
        else:
            raise EnvBug(f"{root}/{name}: is no file, folder or link; remove it from the task")


def _target(root: Path, name: str) -> str:
    """The target of a link, if it stays in the folder. Raises EnvBug."""
    target = os.readlink(root / name)
    place = os.path.normpath(os.path.join(os.path.dirname(name), target))
    leaves = target.startswith("/") or place == ".." or place.startswith("../")
    if not leaves:  # by way of other links?
        real, home = os.path.realpath(root / name), os.path.realpath(root)
        leaves = real != home and not real.startswith(home + os.sep)
    if leaves:
        raise EnvBug(f"{root}/{name}: this link leaves the task folder; put the file itself there")
    return target


def _opened(root: Path, entry: FolderEntry) -> BufferedReader:
    """Open a file that is still the one that was seen. Raises EnvBug."""
    try:
        descriptor = os.open(root / entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise EnvBug(f"{root}/{entry.name}: cannot be read: {error.strerror}") from error
    file: BufferedReader = BufferedReader(FileIO(descriptor))
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_size != entry.size_bytes:
        file.close()
        raise EnvBug(f"{root}/{entry.name}: changed while it was read")
    return file


def _hash_file(root: Path, entry: FolderEntry) -> bytes:
    with _opened(root, entry) as file:
        return hashlib.file_digest(file, "sha256").digest()
