"""Says in what one tree differs from another; a program of its own that imports nothing of ours.

Run as `python3 -I -S -c TEXT BASE NEW MOST`. Prints `kind NUL path NUL` for each difference; exits
with 3 if there are more than MOST, names too long to say, or more folders in each other than can be
open. No link is followed. Times are not compared: contents are, where sizes are equal.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

TOO_MANY = 3
MOST_PATH_BYTES = 1 << 26
CHUNK_BYTES = 1 << 20
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
HIDDEN = {b"/proc", b"/sys", b"/dev", b"/.hq", b"/__modal", b"/.dockerenv"}
HIDDEN |= {b"/etc/hosts", b"/etc/hostname", b"/etc/resolv.conf"}
"""The provider's, or no part of an image."""


class Differences:
    """What was found so far."""

    def __init__(self, most: int) -> None:
        self.left, self.bytes_left = most, MOST_PATH_BYTES

    def say(self, kind: bytes, path: bytes) -> None:
        """Print one difference."""
        self.left -= 1
        self.bytes_left -= len(path)
        if self.left < 0 or self.bytes_left < 0:
            sys.exit(TOO_MANY)
        sys.stdout.buffer.write(kind + b"\0" + path + b"\0")

    def compare(
        self, old_folder: int | None, new_folder: int, above: bytes
    ) -> Iterator[tuple[bytes, bytes, bool]]:
        """Say what differs in a folder; yields the folders in it, with whether BASE has them."""
        before = entries(old_folder)
        names = entries(new_folder, before, self.left)
        for name in sorted(before - names):
            if above + b"/" + name not in HIDDEN:
                self.say(b"deleted", above + b"/" + name)
        for name in sorted(names):
            path = above + b"/" + name
            new = os.stat(name, dir_fd=new_folder, follow_symlinks=False)
            if path in HIDDEN:
                continue
            old = found(old_folder, name)
            if old is None or old_folder is None:
                self.say(b"added", path)
            elif differ(old, new) or not same_content(old_folder, new_folder, name, new):
                self.say(b"changed", path)
            if stat.S_ISDIR(new.st_mode):
                yield name, path, old is not None and stat.S_ISDIR(old.st_mode)


def entries(
    folder: int | None, known: AbstractSet[bytes] = frozenset(), most_new: int | None = None
) -> set[bytes]:
    """Names in a folder. Exits if more than `most_new` are not known: they need not be kept."""
    names: set[bytes] = set()
    if folder is None:
        return names
    with os.scandir(folder) as found:
        for entry in found:
            name = os.fsencode(entry.name)
            names.add(name)
            if most_new is not None and name not in known:
                most_new -= 1
                if most_new < 0:
                    sys.exit(TOO_MANY)
    return names


def found(folder: int | None, name: bytes) -> os.stat_result | None:
    """An entry of a folder, if it is there."""
    try:
        return None if folder is None else os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def differ(old: os.stat_result, new: os.stat_result) -> bool:
    """Whether two entries differ in what stat(2) says."""
    if (old.st_mode, old.st_uid, old.st_gid) != (new.st_mode, new.st_uid, new.st_gid):
        return True
    if stat.S_ISDIR(new.st_mode):
        return False
    return (old.st_size, old.st_rdev) != (new.st_size, new.st_rdev)


def same_content(old_folder: int, new_folder: int, name: bytes, new: os.stat_result) -> bool:
    """Whether two entries of the same kind and size have the same content."""
    if stat.S_ISLNK(new.st_mode):
        return os.readlink(name, dir_fd=old_folder) == os.readlink(name, dir_fd=new_folder)
    if not stat.S_ISREG(new.st_mode):
        return True
    files = [os.open(name, FILE, dir_fd=folder) for folder in (old_folder, new_folder)]
    try:
        if rights(files[0]) != rights(files[1]):
            return False
        while True:
            chunks = [os.read(file, CHUNK_BYTES) for file in files]
            if chunks[0] != chunks[1]:
                return False
            if not chunks[0]:
                return True
    finally:
        for file in files:
            os.close(file)


def rights(file: int) -> bytes:
    """Capabilities that a program gives."""
    try:
        return os.getxattr(file, "security.capability")
    except OSError:
        return b""


def main() -> None:
    """Compare the trees of the arguments."""
    try:
        compare_trees()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # folders in each other: the agent's doing
            sys.exit(TOO_MANY)
        raise
    sys.stdout.flush()


def compare_trees() -> None:
    """Say in what they differ."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    differences = Differences(int(sys.argv[3]))
    old, new = os.open(sys.argv[1], DIRECTORY), os.open(sys.argv[2], DIRECTORY)
    stack: list[tuple[int | None, int, Iterator[tuple[bytes, bytes, bool]]]] = [
        (old, new, differences.compare(old, new, b""))
    ]
    while stack:
        old_folder, new_folder, inside = stack[-1]
        for name, path, had_it in inside:
            deeper = os.open(name, DIRECTORY, dir_fd=new_folder)
            below = os.open(name, DIRECTORY, dir_fd=old_folder) if had_it else None
            stack.append((below, deeper, differences.compare(below, deeper, path)))
            break
        else:
            stack.pop()
            os.close(new_folder)
            if old_folder is not None:
                os.close(old_folder)


if __name__ == "__main__":
    main()
