"""Trees of files to and from a slot with an image, as tar archives over its commands.

What comes out of a slot was written by an agent, perhaps with a `tar` of its own: `checked` looks
at every member before an archive goes anywhere. The slot needs `tar`, by GNU or busybox.
"""

from __future__ import annotations

import errno
import io
import posixpath
import shlex
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.context import SlotContext

ROOT = "0"
"""The user who reads and writes archives."""
TIMEOUT_S = 300.0
MAX_MEMBERS = 200_000
MAX_NAME_BYTES = 4096
_BLOCK = 512
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)

_READ = """\
cd / || exit 70
if tar --version 2>/dev/null | grep -q GNU; then
  tar --null --format=gnu {options} -T - -cf - 2>/dev/null | head -c {most}
else
  tr '\\000' '\\n' | tar {options} -T - -cf - 2>/dev/null | head -c {most}
fi
"""
"""`head` ends what would be read for hours: a file with a hole of a terabyte."""
_WRITE = "mkdir -p -- {folder} && exec tar -C {folder} {options} -xf -"


class FilesRefused(SandboxError):
    """A slot answers, but its files stop what should be done: perhaps an agent's doing."""


class ArchiveError(Exception):
    """The slot's answer is no archive, or holds what it must not hold."""


class TooManyMembers(ArchiveError):
    """The archive has more members than anybody looks at."""


@dataclass(slots=True)
class Checked:
    """An archive whose members are plain, in one place each, and reached through folders only."""

    data: bytes
    names: list[str] = field(default_factory=list)
    """Absolute paths of the members."""
    folders: set[str] = field(default_factory=set)
    """Those of them that are folders."""
    dropped: list[str] = field(default_factory=list)
    """Absolute paths of members that were left out: devices, pipes, links through links."""


class _PlainHeader(tarfile.TarInfo):
    """A header of the formats that a slot is asked for.

    Python 3.11 looks for patterns in extended headers in quadratic time, and holds the
    interpreter's lock meanwhile: one of 100 kB would stop a worker for minutes.
    """

    def _proc_member(self, source: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or self.type in _EXTENDED:
            raise tarfile.ReadError("an extended header, or a size below 0")
        return super()._proc_member(source)  # type: ignore[misc, no-any-return]


async def read_archive(
    context: SlotContext,
    paths: Sequence[str],
    *,
    max_bytes: int,
    exclude: Sequence[str] = (),
    recursive: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """The files and folders at absolute `paths`, as a tar whose names begin below `/`.

    Missing paths are left out. The content is what the slot says, see `checked`.

    Args:
        context: the slot.
        paths: absolute paths; folders with all that is in them, if `recursive`.
        max_bytes: largest archive.
        exclude: patterns of `tar --exclude`.
        recursive: False = exactly the entries at `paths`.
        timeout_s: for the whole command.

    Raises:
        OSError: it is larger than `max_bytes` (errno EFBIG).
        ArchiveError: the slot did not answer in time.
        SandboxError: the sandbox could not answer.
    """
    options = [f"--exclude={pattern}" for pattern in exclude]
    if not recursive:
        options.append("--no-recursion")
    # A name such as "-C" in the list would be an option of GNU tar's.
    listed = [f"./{path.lstrip('/')}" if path.strip("/") else "." for path in paths]
    result = await context.run(
        _READ.format(options=shlex.join(options), most=max_bytes + 1),
        stdin="\0".join([*listed, ""]).encode("utf-8", "surrogateescape"),
        timeout_s=timeout_s,
        cwd="/",
        user=ROOT,
        max_output_bytes=max_bytes + _BLOCK,
    )
    if result.timed_out:
        raise ArchiveError(f"no archive within {timeout_s:g} s")
    if result.truncated or len(result.stdout) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", paths[0] if paths else "/")
    return result.stdout


async def write_archive(
    context: SlotContext,
    folder: str,
    data: bytes,
    *,
    own: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Unpack a tar into `folder`, which is made if it is missing, as root of the slot.

    With `own`, everything belongs to root; else owners are those in the archive. The slot must not
    have been an agent's: its `tar` is used.

    Raises:
        FilesRefused: `tar` failed, or was not done in time.
        SandboxError: the sandbox could not answer.
    """
    options = ["--no-same-owner"] if own else ["--numeric-owner", "--same-owner"]
    options.append("-p")
    command = _WRITE.format(folder=shlex.quote(folder), options=" ".join(options))
    result = await context.run(command, stdin=data, timeout_s=timeout_s, cwd="/", user=ROOT)
    if not result.ok:
        why = f"not within {timeout_s:g} s" if result.timed_out else result.output[-500:]
        raise FilesRefused(f"{folder}: files could not be put there: {why}")


def checked(data: bytes, takes: Callable[[str], bool] = lambda _: True) -> Checked:
    """Check an archive from a slot, and write it anew with what may be kept of it. Blocking.

    Kept are regular files, folders, symbolic links, and hard links to kept files; each path once;
    nothing below a path that is not a folder. Names are absolute for `takes`, which is asked for
    each, and relative to `/` in the result. Sparse maps and owners' names are not taken over.

    Raises:
        TooManyMembers: it has more than `MAX_MEMBERS`.
        ArchiveError: it is no archive, is cut short, or has extended (pax) headers.
    """
    result, kinds = Checked(b""), dict[str, bytes]()
    buffer = io.BytesIO()
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(data), mode="r:", tarinfo=_PlainHeader) as source,
            tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as target,
        ):
            for number, member in enumerate(source):
                if number >= MAX_MEMBERS:
                    raise TooManyMembers(f"more than {MAX_MEMBERS} files")
                path = _absolute(member.name)
                if path is None:
                    raise ArchiveError(f"a name that leaves the root: {member.name[:200]!a}")
                if path == "/" or not takes(path):
                    continue
                if not _may_be_kept(member, path, kinds):
                    result.dropped.append(path)
                    continue
                _keep(member, path, kinds)
                result.names.append(path)
                if member.isdir():
                    result.folders.add(path)
                content = source.extractfile(member) if member.isreg() else None
                target.addfile(_plain(member, path), content)
    except RecursionError as error:  # each header says that the next one has the name
        raise ArchiveError("too many headers of one file") from error
    except (tarfile.TarError, EOFError, ValueError, OverflowError, OSError) as error:
        raise ArchiveError(f"no whole archive: {error}") from error
    result.data = buffer.getvalue()
    return result


def joined(archives: Sequence[bytes]) -> bytes:
    """One archive of the members of several that `checked` wrote. Blocking."""
    if len(archives) == 1:
        return archives[0]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as target:
        for data in archives:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as source:
                for member in source:
                    target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return buffer.getvalue()


def packed(root: Path, names: Iterable[str], *, executable: Iterable[str] = ()) -> bytes:
    """A tar of files of the worker below `root`, which belong to root in the slot. Blocking.

    Args:
        root: a folder of ours: what is in it was checked.
        names: relative paths of files, folders and links, folders before what is in them.
        executable: those of them that get mode 755 in any case.

    Raises:
        OSError: one cannot be read.
    """
    buffer, runs = io.BytesIO(), set(executable)
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in names:
            info = tar.gettarinfo(str(root / name), arcname=name)
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            runs_it = info.isdir() or info.mode & 0o100 or name in runs
            info.mode = 0o755 if runs_it else 0o644
            if info.isreg():
                with (root / name).open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return buffer.getvalue()


def _absolute(name: str) -> str | None:
    """The path that a member's name means; None if it leaves the root."""
    if ".." in name.split("/") or "\0" in name:
        return None
    return posixpath.normpath("/" + name.lstrip("/"))


def _may_be_kept(member: tarfile.TarInfo, path: str, kinds: dict[str, bytes]) -> bool:
    if path in kinds and not (member.isdir() and kinds[path] == tarfile.DIRTYPE):
        return False
    if len(path.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
        return False
    nearest = next((kinds[each] for each in _parents(path) if each in kinds), tarfile.DIRTYPE)
    if nearest != tarfile.DIRTYPE:
        return False
    if member.islnk():
        target = _absolute(member.linkname)
        return target is not None and kinds.get(target) == tarfile.REGTYPE
    if member.issparse():  # a few bytes that stand for a terabyte
        return False
    return member.isreg() or member.isdir() or member.issym()


def _keep(member: tarfile.TarInfo, path: str, kinds: dict[str, bytes]) -> None:
    """Note the kind of a path, and that what is above it are folders."""
    kinds[path] = tarfile.REGTYPE if member.isreg() else member.type
    for parent in _parents(path):
        if parent in kinds:
            break
        kinds[parent] = tarfile.DIRTYPE


def _parents(path: str) -> Iterable[str]:
    while (path := posixpath.dirname(path)) != "/":
        yield path


def _plain(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """A header with the member's kind, mode, owner, size and time alone."""
    info = tarfile.TarInfo(path.lstrip("/"))
    info.type = tarfile.REGTYPE if member.isreg() else member.type
    info.mode = member.mode & 0o7777
    info.uid, info.gid = member.uid & 0x7FFFFFFF, member.gid & 0x7FFFFFFF
    info.mtime = max(0, min(int(member.mtime), 0x1FFFFFFFF))
    info.size = member.size if member.isreg() else 0
    if member.islnk():
        info.linkname = (_absolute(member.linkname) or "/").lstrip("/")
    elif member.issym():
        info.linkname = member.linkname
    return info
