"""Build contexts: the folder with a Dockerfile, read as the hostile input that it may be.

The folder is walked once, by descriptors and without following links. What cannot be part of an
image, or is too much, is refused with its path. Contents are checked against that walk again when
they are read.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import IO, Any, Literal

from hermes_plugins.images.extra import dockerfile_library
from hermes_queue.errors import EnvBug
from hermes_queue.images.spec import ImageSpec

DOCKERFILE = "Dockerfile"
IGNORE_FILE = ".dockerignore"
MAX_ENTRIES = 100_000
MAX_BYTES = 4 << 30
MAX_DEPTH = 64
MAX_PATH_CHARS = 1024
MAX_TEXT_BYTES = 1 << 20
"""Of the Dockerfile."""
MAX_PATTERNS = 1000
MAX_STARS = 3
"""In one part of a pattern, and of `**` in all of it: each multiplies the time of a match."""
MATCH_TIMEOUT_S = 20.0
CHUNK_BYTES = 1 << 20
SETTLED_S = 2.0
"""Age of a change after which another one has another time."""

EntryKind = Literal["file", "directory", "link"]


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """A file, directory or symbolic link in a context."""

    path: str
    """Relative, with slashes."""
    kind: EntryKind
    mode: int
    """Permission bits; 0o777 for links."""
    size: int
    content: str
    """Hex SHA-256 of a file, target of a link, empty for a directory."""
    mtime: int = 0
    """Kept in the image, because make and zip look at it; no part of digests and keys."""


class BuildContext:
    """The files below `root` as they were when this was made. Blocking; safe in any thread."""

    def __init__(self, root: Path) -> None:
        """Walk and read the folder.

        Raises:
            EnvBug: it cannot be read, or something in it cannot be part of an image; names it.
        """
        self.root = root
        self.entries: Mapping[str, ContextEntry] = _walk(root)

    @classmethod
    def open(cls, spec: ImageSpec) -> BuildContext:
        """The context that a task names.

        Raises:
            EnvBug: as the constructor; or its digest is not that of the spec.
        """
        if spec.context is None or not os.path.isabs(spec.context):
            raise EnvBug(f"image.context must be an absolute path, not {spec.context!r}")
        context = cls(Path(spec.context))
        if spec.digest and context.digest != spec.digest:
            raise EnvBug(
                f"the build context {spec.context} has the digest {context.digest}, and the task "
                f"names {spec.digest}: its files have changed, or are another version's"
            )
        return context

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over names, kinds, modes and contents; see `ImageSpec.digest`."""
        return digest_of(self.entries.values())

    def dockerfile(self) -> str:
        """Text of the Dockerfile. Raises EnvBug: there is none, or it is no text."""
        entry = self.entries.get(DOCKERFILE)
        if entry is None or entry.kind != "file":
            raise EnvBug(f"{self.root} has no file {DOCKERFILE}, which the image is built from")
        return self._text(entry)

    def included(self) -> dict[str, ContextEntry]:
        """The entries that `.dockerignore` leaves. Raises EnvBug: the file is not usable."""
        ignored = self.entries.get(IGNORE_FILE)
        if ignored is None or ignored.kind != "file":
            return dict(self.entries)
        matcher = _matcher(self._text(ignored))
        ends = time.monotonic() + MATCH_TIMEOUT_S
        found = {}
        for path, entry in self.entries.items():
            if time.monotonic() > ends:
                raise EnvBug(f"{self.root}/{IGNORE_FILE} takes more than {MATCH_TIMEOUT_S:g} s")
            if not matcher.matches(path):
                found[path] = entry
        for path in list(found):  # `!dir/file` keeps the directories above it
            while path := dirname(path):
                found.setdefault(path, self.entries[path])
        return {path: found[path] for path in sorted(found)}

    def read(self, entry: ContextEntry, file: IO[bytes]) -> None:
        """Copy a file's bytes to `file`. Raises EnvBug: it has changed since the walk."""
        digest = hashlib.sha256()
        with _opened(self.root, entry.path) as source:
            for chunk in iter(lambda: source.read(CHUNK_BYTES), b""):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != entry.content:
            raise EnvBug(f"{self.root}/{entry.path} has changed while the image was built")

    def head(self, entry: ContextEntry) -> bytes:
        """The first 512 bytes of a file. Raises EnvBug: it is gone."""
        with _opened(self.root, entry.path) as source:
            return source.read(512)

    def for_engines(self) -> dict[str, ContextEntry]:
        """What a container engine gets: `included`, and the Dockerfile."""
        chosen = self.included()
        chosen.pop(IGNORE_FILE, None)  # applied already; some engines would apply it again
        if DOCKERFILE in self.entries:
            chosen[DOCKERFILE] = self.entries[DOCKERFILE]
        return chosen

    def add_to_tar(self, tar: tarfile.TarFile, entry: ContextEntry, name: str) -> None:
        """Add one entry under another name. Raises EnvBug: it has changed since the walk."""
        info = tar_member(entry, name)
        if entry.kind != "file":
            tar.addfile(info)
            return
        with _opened(self.root, entry.path) as source:
            checked = _Checked(source)
            try:
                tar.addfile(info, checked)
            except OSError as error:
                raise EnvBug(f"{self.root}/{entry.path} cannot be read: {error}") from error
        if checked.digest.hexdigest() != entry.content:
            raise EnvBug(f"{self.root}/{entry.path} has changed while the image was built")

    def _text(self, entry: ContextEntry) -> str:
        if entry.size > MAX_TEXT_BYTES:
            raise EnvBug(f"{self.root}/{entry.path} has more than {MAX_TEXT_BYTES >> 10} KiB")
        buffer = io.BytesIO()
        self.read(entry, buffer)
        try:
            return buffer.getvalue().decode()
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            what = f"line {line} is not UTF-8, byte {error.object[error.start]:#x}"
            raise EnvBug(f"{self.root}/{entry.path}: {what}; save it as UTF-8") from error


def digest_of(entries: Iterable[ContextEntry]) -> str:
    """Hex SHA-256 over names, kinds, modes and contents."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda each: each.path):
        line = f"{entry.kind}\0{entry.mode:o}\0{entry.path}\0{entry.content}\0\n"
        digest.update(line.encode())
    return digest.hexdigest()


def tar_member(entry: ContextEntry, name: str) -> tarfile.TarInfo:
    """The header of an entry, which belongs to root."""
    info = tarfile.TarInfo(name)
    info.mtime = entry.mtime
    info.mode = entry.mode
    if entry.kind == "directory":
        info.type = tarfile.DIRTYPE
    elif entry.kind == "link":
        info.type, info.linkname = tarfile.SYMTYPE, entry.content
    else:
        info.size = entry.size
    return info


class _Checked:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


class _Walk:
    """Counts what a walk has found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.entries: dict[str, ContextEntry] = {}
        self.bytes = 0

    def add(self, entry: ContextEntry) -> None:
        self.bytes += entry.size
        if len(self.entries) >= MAX_ENTRIES:
            raise EnvBug(f"{self.root} has more than {MAX_ENTRIES} files, at {entry.path}")
        if self.bytes > MAX_BYTES:
            raise EnvBug(f"{self.root} has more than {MAX_BYTES >> 30} GiB, at {entry.path}")
        self.entries[entry.path] = entry

    def refuse(self, path: str, why: str) -> EnvBug:
        return EnvBug(f"{self.root}/{path[:300]}: {why}; an image cannot be built with it")

    def visit(self, descriptor: int, above: str, depth: int) -> None:
        with os.scandir(descriptor) as found:
            names = sorted(each.name for each in self._bounded(found))
        for name in names:
            path = f"{above}{name}"
            if len(path) > MAX_PATH_CHARS or not _is_unicode(path):
                raise self.refuse(repr(path), "its path is too long, or not UTF-8")
            found_stat = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            mode, mtime = stat.S_IMODE(found_stat.st_mode) & 0o777, int(found_stat.st_mtime)
            if stat.S_ISLNK(found_stat.st_mode):
                target = os.readlink(name, dir_fd=descriptor)
                if leads_out(path, target):
                    raise self.refuse(path, f"the link leads out of the folder, to {target[:300]}")
                self.add(ContextEntry(path, "link", 0o777, 0, target, mtime))
            elif stat.S_ISDIR(found_stat.st_mode):
                if depth >= MAX_DEPTH:
                    raise self.refuse(path, f"more than {MAX_DEPTH} directories deep")
                self.add(ContextEntry(path, "directory", mode, 0, "", mtime))
                inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
                try:
                    self.visit(inner, f"{path}/", depth + 1)
                finally:
                    os.close(inner)
            elif stat.S_ISREG(found_stat.st_mode):
                self._visit_file(descriptor, name, path, mode, mtime)
            else:
                raise self.refuse(path, "neither a file, a directory nor a link")

    def _visit_file(self, above: int, name: str, path: str, mode: int, mtime: int) -> None:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above)
        with os.fdopen(opened, "rb") as file:
            found = os.fstat(opened)
            if self.bytes + found.st_size > MAX_BYTES:
                raise EnvBug(f"{self.root} has more than {MAX_BYTES >> 30} GiB, at {path}")
            key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            content = _KNOWN.get(key) or _digest_of_file(file, found.st_size)
        if found.st_ctime < time.time() - SETTLED_S:
            if len(_KNOWN) >= MAX_ENTRIES:
                _KNOWN.clear()
            _KNOWN[key] = content
        self.add(ContextEntry(path, "file", mode, found.st_size, content, mtime))

    def _bounded(self, found: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for number, each in enumerate(found):
            if number > MAX_ENTRIES:
                raise EnvBug(f"{self.root} has more than {MAX_ENTRIES} files, at {each.name}")
            yield each


_KNOWN: dict[tuple[int, ...], str] = {}
"""Digests of files by device, inode, size and times: many leases have the same context."""


def _digest_of_file(file: IO[bytes], size: int) -> str:
    """Hex SHA-256 of the first `size` bytes."""
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(CHUNK_BYTES, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def leads_out(path: str, target: str) -> bool:
    """Whether a link at the relative `path` points to a place outside of the tree."""
    place = normpath(join(dirname(path), target))
    return target.startswith("/") or place == ".." or place.startswith("../") or "\0" in target


def _walk(root: Path) -> dict[str, ContextEntry]:
    walk = _Walk(root)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            walk.visit(descriptor, "", 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise EnvBug(f"the build context {root} cannot be read: {error}") from error
    return walk.entries


def _opened(root: Path, path: str) -> IO[bytes]:
    """A regular file below `root`; no link is followed on the way. Raises EnvBug: it is gone."""
    *above, name = path.split("/")
    descriptor = -1
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in above:
            inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
    except OSError as error:
        raise EnvBug(f"{root}/{path} has changed while the image was built: {error}") from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return os.fdopen(opened, "rb")


def _is_unicode(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _matcher(text: str) -> Any:
    """What `.dockerignore` leaves out. Raises EnvBug: a pattern is malformed, or too costly."""
    patterns = [line.strip() for line in text.removeprefix("\ufeff").splitlines()]
    patterns = [line for line in patterns if line and not line.startswith("#")]
    if len(patterns) > MAX_PATTERNS:
        raise EnvBug(f"{IGNORE_FILE} has more than {MAX_PATTERNS} patterns")
    for pattern in patterns:
        parts = pattern.split("/")
        stars = [part.replace("**", "*").count("*") for part in parts if part != "**"]
        if len(pattern) > MAX_PATH_CHARS or max([parts.count("**"), *stars]) > MAX_STARS:
            raise EnvBug(f"{IGNORE_FILE}: the pattern {pattern[:100]!r} has too many wildcards")
    try:
        return dockerfile_library().PatternMatcher(patterns)
    except ValueError as error:
        raise EnvBug(f"{IGNORE_FILE}: {error}") from error
