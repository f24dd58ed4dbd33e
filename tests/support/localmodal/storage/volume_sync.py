"""Commit a sandbox's copy of a volume, or update the copy.

`volume_sync.py commit|reload PLACE COMMITTED`, where PLACE contains the copy (`work`) and a
listing of its state after the last call (`base.json`). Runs as the sandboxes' root without
hermes_queue: standard library only. Directories are walked by descriptor and links are never
followed, since the sandbox may move things meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Signature = list[object]
"""Distinguishes two versions of a file; copying preserves it."""
Tree = dict[str, Signature]


def signature(name: str, parent: int) -> Signature:
    """Signature of one entry of the directory `parent`."""
    info = os.stat(name, dir_fd=parent, follow_symlinks=False)
    kind = stat.S_IFMT(info.st_mode)
    same: Signature = [info.st_mode, info.st_uid, info.st_gid]
    if kind == stat.S_IFREG:
        return [*same, info.st_size, info.st_mtime_ns]
    if kind == stat.S_IFLNK:
        return [*same, os.readlink(name, dir_fd=parent)]
    return same


def scan(directory: int, prefix: str = "") -> Tree:
    """Signatures of everything below a directory by path, parents first; no sockets or pipes."""
    found: Tree = {}
    for name in sorted(os.listdir(directory)):
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
                continue
            found[prefix + name] = signature(name, directory)
            if stat.S_ISDIR(mode):
                inner = os.open(name, DIRECTORY, dir_fd=directory)
                try:
                    found.update(scan(inner, f"{prefix}{name}/"))
                finally:
                    os.close(inner)
    return found


@contextlib.contextmanager
def parent_of(root: int, path: str) -> Iterator[tuple[int, str]]:
    """A descriptor of the directory that contains `path`, and the name in it."""
    *parts, name = path.split("/")
    current = os.dup(root)
    try:
        for part in parts:
            following = os.open(part, DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
        yield current, name
    finally:
        os.close(current)


def remove(root: int, path: str) -> None:
    """Delete a file, a link, or a tree."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), parent_of(root, path) as place:
        parent, name = place
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)


def copy(source_root: int, target_root: int, path: str) -> None:
    """Copy one entry with owner, mode and time; directories without their content."""
    with parent_of(source_root, path) as source, parent_of(target_root, path) as target:
        parent, name = source
        into, _ = target
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            if not is_directory(into, name):
                remove(into, name)
                os.mkdir(name, dir_fd=into)
        else:
            remove(into, name)
            if stat.S_ISLNK(info.st_mode):
                os.symlink(os.readlink(name, dir_fd=parent), name, dir_fd=into)
            else:
                copy_content(parent, into, name)
        os.chown(name, info.st_uid, info.st_gid, dir_fd=into, follow_symlinks=False)
        if not stat.S_ISLNK(info.st_mode):
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=into)
            os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=into)


def is_directory(parent: int, name: str) -> bool:
    """Whether it is a directory, not a link to one."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def copy_content(source: int, target: int, name: str) -> None:
    """Copy the content of a regular file to a name that must not exist."""
    reader = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    with open(reader, "rb") as content:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=target), "wb") as sink:
            shutil.copyfileobj(content, sink, 1 << 20)


def transfer(source: int, target: int, changed: list[str], removed: list[str]) -> None:
    """Copy the `changed` paths and delete the `removed` ones."""
    for path in removed:
        remove(target, path)
    for path in changed:
        with contextlib.suppress(FileNotFoundError):
            copy(source, target, path)


def main(operation: str, place: str, committed_path: str) -> None:
    """Run the operation given by the arguments."""
    work = os.open(os.path.join(place, "work"), DIRECTORY)
    committed = os.open(committed_path, DIRECTORY)
    base_path = os.path.join(place, "base.json")
    base: Tree = {}
    with contextlib.suppress(FileNotFoundError), open(base_path) as known:
        base = json.load(known)
    mine = scan(work)
    theirs = scan(committed)
    if operation == "commit":
        changed = [path for path, now in mine.items() if base.get(path) != now]
        transfer(work, committed, changed, [path for path in base if path not in mine])
        base = mine
    else:
        changed = [path for path, now in theirs.items() if mine.get(path) != now]
        transfer(committed, work, changed, [path for path in mine if path not in theirs])
        base = scan(work)
    with open(base_path, "w") as known:
        json.dump(base, known)


if __name__ == "__main__":
    main(*sys.argv[1:])
