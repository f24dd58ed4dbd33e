"""Works on the files of an image: `python -I -S -c TEXT TREE COMMAND JSON`.

Runs as root of a user namespace, and changes its root directory to the tree first, so that links
and names with `..` lead nowhere else. Archives are hostile: the number and size of what they hold
is bounded, devices are left out. Errors go to stdout as one line, with exit code 1.

It may import the standard library alone, because it is sent as text.
"""

import bz2  # noqa: F401 - tarfile imports these later, when the tree is our root directory
import contextlib
import fnmatch
import gzip  # noqa: F401
import io
import json
import lzma  # noqa: F401
import os
import posixpath
import resource
import shutil
import stat
import sys
import tarfile
import zlib  # noqa: F401
from collections.abc import Callable, Iterator
from typing import IO, Any

INDEX = "index.json"
"""First member of the archives that `pack` writes and `place` reads."""
WHITEOUT, OPAQUE, RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
OVERFLOW_ID, MAX_ID = 65534, 65535
MAX_MEMORY_BYTES = 2 << 30
MAX_NAME_CHARS = 4095
MAX_READ_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
XATTRS = ("security.capability", "user.")


class TreeRefused(Exception):
    """The input cannot become part of an image; the text says why."""


class ArchiveBudget:
    """What an archive may still bring."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.bytes: int = options["max_bytes"]
        self.entries: int = options["max_entries"]

    def take(self, member: tarfile.TarInfo) -> None:
        """Count one member. Raises TreeRefused: too much."""
        self.entries -= 1
        self.bytes -= max(0, member.size)
        if self.entries < 0:
            raise TreeRefused(f"too many files in the archive, at {member.name[:200]}")
        if self.bytes < 0:
            raise TreeRefused(f"the archive holds more than is allowed, at {member.name[:200]}")


def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of a stream, which are not remembered."""
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # typeshed hides it
        yield member


def path_of(name: str) -> str:
    """The absolute path that a member's name means. Raises TreeRefused: it leads out."""
    if len(name) > MAX_NAME_CHARS or "\0" in name:
        raise TreeRefused(f"a name in the archive is too long: {name[:100]!r}")
    if ".." in name.split("/"):
        raise TreeRefused(f"a name in the archive leads out of it: {name[:200]!r}")
    return posixpath.normpath("/" + name.lstrip("/"))


def clear(path: str) -> None:
    """Make room for something that is no directory."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(kind):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def make_directories(path: str, owner: tuple[int, int] = (0, 0), mode: int = 0o755) -> None:
    """Make a directory and those above it, where they are missing."""
    if os.path.isdir(path):
        return
    if path != "/":
        make_directories(posixpath.dirname(path), owner)
    os.mkdir(path, mode)
    os.chmod(path, mode)
    os.chown(path, *owner)


def write_file(path: str, source: IO[bytes]) -> None:
    """A new file with the rest of `source`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)


def put(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, owner: tuple[int, int]) -> None:
    """Write one member at `path`, whose parent exists. Devices are left out."""
    if member.isdir():
        if not os.path.isdir(path) or os.path.islink(path):
            clear(path)
            os.mkdir(path)
    elif member.issym() or member.islnk():
        put_link(member, path, owner)
        return
    elif member.isfile():
        clear(path)
        write_file(path, tar.extractfile(member) or io.BytesIO())
    elif member.isfifo():
        clear(path)
        os.mkfifo(path)
    else:
        return
    os.chown(path, *owner)
    os.chmod(path, member.mode & 0o7777)
    set_attributes(member, path)
    if not member.isdir():
        os.utime(path, (max(0, member.mtime), max(0, member.mtime)))


def put_link(member: tarfile.TarInfo, path: str, owner: tuple[int, int]) -> None:
    """A symbolic link as it is; a hard link to what the archive brought before."""
    if member.issym():
        clear(path)
        os.symlink(member.linkname, path)
        os.lchown(path, *owner)
    elif (source := path_of(member.linkname)) != path:
        clear(path)
        os.link(source, path, follow_symlinks=False)


def set_attributes(member: tarfile.TarInfo, path: str) -> None:
    """Extended attributes, where the file system has them; none that overlayfs would obey."""
    for name, value in member.pax_headers.items():
        key = name.removeprefix("SCHILY.xattr.")
        if key != name and key.startswith(XATTRS) and not key.startswith("user.overlay."):
            with contextlib.suppress(OSError):
                data = value.encode("utf-8", "surrogateescape")
                os.setxattr(path, key, data, follow_symlinks=False)


def unpack_one(tar: tarfile.TarFile, member: tarfile.TarInfo, whiteouts: bool) -> None:
    """One member of a layer or root file system."""
    path = path_of(member.name)
    parent, name = posixpath.split(path)
    if whiteouts and name.startswith(WHITEOUT):
        make_directories(parent)
        if name == OPAQUE:
            os.setxattr(parent, "user.overlay.opaque", b"y")
        elif not name.startswith(RESERVED) and name != WHITEOUT:
            hidden = posixpath.join(parent, name.removeprefix(WHITEOUT))
            clear(hidden)
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0))
        return
    if path == "/":
        if member.isdir():
            os.chmod(path, member.mode & 0o7777)
        return
    make_directories(parent)
    put(tar, member, path, ids_of(member))


def ids_of(member: tarfile.TarInfo) -> tuple[int, int]:
    """Owner and group of a member; "nobody" for ids that slots do not have."""
    uid, gid = (each if 0 <= each <= MAX_ID else OVERFLOW_ID for each in (member.uid, member.gid))
    return uid, gid


def unpack(options: dict[str, Any]) -> None:
    """Unpack a layer or a root file system from stdin into the tree, which is empty."""
    budget = ArchiveBudget(options)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
        for member in members(tar):
            budget.take(member)
            unpack_one(tar, member, bool(options["whiteouts"]))


class Placing:
    """COPY: where each source goes."""

    def __init__(self, options: dict[str, Any], sources: list[dict[str, str]]) -> None:
        self.destination: str = options["destination"]
        self.owner: tuple[int, int] | None = options["owner"]
        self.mode: int | None = options["mode"]
        self.sources = sources
        self.is_directory = self.destination.endswith("/") or os.path.isdir(self.destination)

    def target(self, number: int, rest: str) -> str:
        """The path of a member: of a source itself, or of `rest` below it."""
        source = self.sources[number]
        if source["kind"] != "file":
            return posixpath.join(self.destination, rest).rstrip("/") or "/"
        if self.is_directory:
            return posixpath.join(self.destination, source["name"])
        return self.destination

    def put(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        """Write one member, with the owner and mode of the instruction."""
        if self.mode is not None and not member.issym():
            member.mode = self.mode
        if member.isdir():
            existed = os.path.isdir(path)
            make_directories(path, self.owner or (0, 0))
            if not existed:
                os.chmod(path, member.mode & 0o7777)
            return
        if os.path.isdir(path) and not os.path.islink(path):
            raise TreeRefused(f"{path[:300]} is a directory of the image, and a file in the source")
        make_directories(posixpath.dirname(path), self.owner or (0, 0))
        put(tar, member, path, self.owner or (0, 0))


def place(options: dict[str, Any]) -> None:
    """COPY and ADD: put the sources from stdin, with their index, into the tree."""
    budget = ArchiveBudget(options)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
        placing: Placing | None = None
        for member in members(tar):
            file = tar.extractfile(member) if member.isfile() else None
            if placing is None:
                placing = Placing(options, json.load(file or io.BytesIO()))
                continue
            budget.take(member)
            number, _, rest = member.name.partition("/")
            if placing.sources[int(number)]["kind"] == "archive" and file is not None:
                unpack_added(file, placing, budget)
            else:
                path = placing.target(int(number), path_of(rest).lstrip("/"))
                placing.put(tar, member, path)


def unpack_added(file: IO[bytes], placing: Placing, budget: ArchiveBudget) -> None:
    """ADD: unpack an archive, of any compression that tar knows, with its own modes and owners."""
    root = placing.destination.rstrip("/") or "/"
    make_directories(root, placing.owner or (0, 0))
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in members(tar):
            budget.take(member)
            path = posixpath.join(root, path_of(member.name).lstrip("/"))
            if member.isdir() and os.path.isdir(path):
                continue  # also where the image has a link to a directory
            if member.islnk():
                member.linkname = posixpath.join(root, path_of(member.linkname).lstrip("/"))
            make_directories(posixpath.dirname(path), placing.owner or (0, 0))
            put(tar, member, path, placing.owner or ids_of(member))


def has_wildcards(pattern: str) -> bool:
    """Whether the pattern is more than a name."""
    return any(mark in pattern for mark in "*?[\\")


def matches(pattern: str, path: str) -> bool:
    """Whether a path matches a pattern of Go's `filepath.Match`, as COPY uses it."""
    wanted, parts = pattern.split("/"), path.split("/")
    return len(wanted) == len(parts) and all(
        fnmatch.fnmatchcase(part, _python_pattern(each))
        for each, part in zip(wanted, parts, strict=True)
    )


def _python_pattern(part: str) -> str:
    r"""Go writes `[^a]` and `\*` where Python writes `[!a]` and `[*]`."""
    found, index = "", 0
    while index < len(part):
        if part[index] == "\\" and index + 1 < len(part):
            index += 1
            found += f"[{part[index]}]" if part[index] in "*?[" else part[index]
        elif part.startswith("[^", index):
            index += 1
            found += "[!"
        else:
            found += part[index]
        index += 1
    return found


def found_by(pattern: str) -> list[str]:
    """The paths of the tree that a source of COPY --from names. Raises TreeRefused: none."""
    whole = posixpath.normpath("/" + pattern)
    if not has_wildcards(whole):
        if not os.path.lexists(whole):
            raise TreeRefused(f"COPY --from: {whole[:300]} is not there")
        return [whole]
    found = ["/"]
    for part in whole.strip("/").split("/"):
        if not has_wildcards(part):
            found = [posixpath.join(each, part) for each in found]
            found = [each for each in found if os.path.lexists(each)]
            continue
        found = [
            posixpath.join(each, name)
            for each in found
            if os.path.isdir(each)
            for name in sorted(os.listdir(each))
            if matches(part, name)
        ]
    if not found:
        raise TreeRefused(f"COPY --from: nothing matches {whole[:300]}")
    return found


class Forgetful(dict[Any, Any]):
    """Remembers no file, so that tarfile writes a file with two names twice."""

    def __contains__(self, key: object) -> bool:
        return False


def pack(options: dict[str, Any]) -> None:
    """Write the sources of COPY --from to stdout, as an archive with an index."""
    paths = [os.path.realpath(each) for pattern in options["sources"] for each in found_by(pattern)]
    names = [each for pattern in options["sources"] for each in found_by(pattern)]
    index = [
        {"name": posixpath.basename(name), "kind": "directory" if os.path.isdir(path) else "file"}
        for name, path in zip(names, paths, strict=True)
    ]
    budget = ArchiveBudget(options)

    def checked(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        budget.take(member)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member if member.isreg() or member.isdir() or member.issym() else None

    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        tar.inodes = Forgetful()  # type: ignore[attr-defined]  # typeshed hides it
        data = json.dumps(index).encode()
        info = tarfile.TarInfo(INDEX)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
        for number, path in enumerate(paths):
            tar.add(path, arcname=str(number), filter=checked)


def make(options: dict[str, Any]) -> None:
    """WORKDIR: make a directory and those above it, which belong to the owner, too."""
    path = options["path"]
    if os.path.lexists(path) and not os.path.isdir(path):
        raise TreeRefused(f"{path[:300]} is not a directory of the image")
    make_directories(path, options["owner"] or (0, 0))


def read(options: dict[str, Any]) -> None:
    """Write the first MiB of a regular file to stdout; nothing if there is none."""
    try:
        descriptor = os.open(options["path"], os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    with open(descriptor, "rb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            sys.stdout.buffer.write(file.read(MAX_READ_BYTES))


COMMANDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "unpack": unpack,
    "place": place,
    "pack": pack,
    "make": make,
    "read": read,
}


def main(arguments: list[str]) -> None:
    """Run one command, see above."""
    tree, command, text = arguments
    if command == "measure":
        os.execvp("du", ["du", "-s", "--block-size=1", "--one-file-system", "--", tree])  # noqa: S606, S607
    if command == "remove":
        os.chdir(tree)
        words = ["find", ".", "-mindepth", "1", "-maxdepth", "1", "-exec", "rm", "-rf", "--", "{}"]
        os.execvp("find", [*words, "+"])  # noqa: S606, S607
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    os.umask(0o022)
    os.chroot(tree)
    os.chdir("/")
    try:
        COMMANDS[command](json.loads(text))
    except (TreeRefused, OSError, tarfile.TarError, ValueError, EOFError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}"[:2000])


if __name__ == "__main__":
    main(sys.argv[1:])
