"""In what a slot's files differ from its image, and copies of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

from hermes_plugins.images.rootfs.host import RootfsHost
from hermes_plugins.images.steps import LayerStack
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.image_slots import MAX_CHANGES, FileChange, TooManyChanges

TIMEOUT_S = 300.0
TOO_MANY = 3
# Arguments: the tree of the image, the directory with the slot's changes, the most changes.
# Directories are opened one by one without following links, because the slot may be running.
_LIST = r'''
import errno, os, resource, stat, sys
image, changes, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
out, count, size = sys.stdout.buffer, 0, 0

def say(kind, path):
    global count, size
    count, size = count + 1, size + len(path)
    if count > most or size > 1 << 26:
        sys.exit(3)
    out.write(kind + b"\0" + path + b"\0")

def entry(directory, name):
    try:
        return None if directory is None else os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None

def is_opaque(directory):
    try:
        return os.getxattr(directory, "user.overlay.opaque") in (b"y", b"x")
    except OSError:
        return False

def compare(upper, lower, path):
    """Say what is different in one directory; yields those in it, with whether the image has it."""
    names = {os.fsencode(name) for name in os.listdir(upper)}
    for name in sorted(names):
        new, old, place = entry(upper, name), entry(lower, name), path + b"/" + name
        if new is None:
            continue
        if stat.S_ISCHR(new.st_mode) and new.st_rdev == 0:
            if old is not None:
                say(b"deleted", place)
            continue
        had_directory = old is not None and stat.S_ISDIR(old.st_mode)
        if stat.S_ISDIR(new.st_mode):
            before, now = [(each.st_mode, each.st_uid, each.st_gid) for each in (old or new, new)]
            if old is None or before != now:
                say(b"changed" if old else b"added", place)
            yield name, had_directory, place
        else:
            say(b"changed" if old else b"added", place)
    if lower is not None and is_opaque(upper):
        for name in sorted({os.fsencode(name) for name in os.listdir(lower)} - names):
            say(b"deleted", path + b"/" + name)

def descend(upper, lower, path):
    return upper, lower, compare(upper, lower, path)

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
stack = [descend(os.open(changes, FLAGS), os.open(image, FLAGS), b"")]
def step():
    upper, lower, inside = stack[-1]
    for name, had_directory, place in inside:
        try:
            deeper = os.open(name, FLAGS, dir_fd=upper)
        except (FileNotFoundError, NotADirectoryError):
            continue
        below = os.open(name, FLAGS, dir_fd=lower) if had_directory else None
        stack.append(descend(deeper, below, place))
        break
    else:
        stack.pop()
        for descriptor in (upper, lower):
            if descriptor is not None:
                os.close(descriptor)

try:
    while stack:
        step()
except OSError as error:
    if error.errno in (errno.EMFILE, errno.ENFILE):  # folders in each other: the agent's doing
        sys.exit(3)
    raise
out.flush()
'''
# Arguments: the new directory, the directory with a slot's changes. By descriptors and without
# following links, because the slot may be running: it could else lead the copy out of its files.
_COPY = r"""
import os, resource, stat, sys
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
links = {}

def same_attributes(old, new, found):
    for name in os.listxattr(old):
        if name.startswith("user.") or name == "security.capability":
            os.setxattr(new, name, os.getxattr(old, name))
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))

def copy_file(name, source, target, found):
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    old = os.open(name, how, dir_fd=source)
    new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
    try:
        if not stat.S_ISREG(os.fstat(old).st_mode):
            raise OSError("a file changed while it was copied")
        while os.copy_file_range(old, new, 1 << 30):
            pass
        os.fchown(new, found.st_uid, found.st_gid)
        os.fchmod(new, stat.S_IMODE(found.st_mode))
        same_attributes(old, new, found)
    finally:
        os.close(old)
        os.close(new)

def copy_entry(name, source, target, found):
    key = found.st_dev, found.st_ino
    if found.st_nlink > 1 and key in links:
        return os.link(links[key], root + "/" + here + name, follow_symlinks=False)
    if stat.S_ISREG(found.st_mode):
        copy_file(name, source, target, found)
    elif stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
    elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:  # deleted here
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)
    elif stat.S_ISFIFO(found.st_mode):
        os.mknod(name, found.st_mode, dir_fd=target)
        os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
    if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
        links[key] = root + "/" + here + name

root, here = sys.argv[1], ""
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
top = os.open(sys.argv[2], FLAGS), os.open(root, FLAGS)
stack = [(*top, iter(os.listdir(top[0])), "")]
while stack:
    source, target, names, here = stack[-1]
    for name in names:
        try:
            found = os.stat(name, dir_fd=source, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(found.st_mode):
            copy_entry(name, source, target, found)
            continue
        os.mkdir(name, 0o700, dir_fd=target)
        deeper = os.open(name, FLAGS, dir_fd=source), os.open(name, FLAGS, dir_fd=target)
        stack.append((*deeper, iter(os.listdir(deeper[0])), here + name + "/"))
        break
    else:
        stack.pop()
        found = os.fstat(source)
        os.fchown(target, found.st_uid, found.st_gid)
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        same_attributes(source, target, found)
        os.close(source)
        os.close(target)
"""


async def changes(
    host: RootfsHost, lower: Sequence[Path], upper: Path, hidden: Sequence[str]
) -> list[FileChange]:
    """See `ImageSlots.changes`; nothing at or below the paths `hidden`, which are mounted over.

    Raises TooManyChanges; FilesRefused: not in time; SandboxError.
    """
    with tempfile.TemporaryFile() as file:
        done = await host.edit(
            LayerStack(tuple(lower), None),
            _LIST,
            [str(upper), str(MAX_CHANGES)],
            stdout=file,
            timeout_s=TIMEOUT_S,
        )
        if done.exit_code == TOO_MANY:
            raise TooManyChanges(
                f"the slot differs from its image in over {MAX_CHANGES} files, or very long names"
            )
        if done.timed_out:
            raise FilesRefused(f"its files were not compared with its image in {TIMEOUT_S:g} s")
        if done.exit_code:
            why = done.output.decode(errors="replace").strip()[-500:]
            raise SandboxError(f"the slot's files cannot be compared with its image: {why}")
        file.seek(0)
        words = file.read().split(b"\0")[:-1]
    found = []
    for kind, path in zip(words[::2], words[1::2], strict=True):
        name = path.decode(errors="surrogateescape")
        if not any(name == place or name.startswith(f"{place}/") for place in hidden):
            found.append(
                FileChange(name, cast(Literal["added", "changed", "deleted"], kind.decode()))
            )
    return sorted(found, key=lambda change: change.path)


async def copy(host: RootfsHost, upper: Path, target: Path) -> None:
    """Copy a slot's changes to the empty directory `target`, which root inside owns.

    Raises SandboxError.
    """
    done = await host.edit(LayerStack((), target), _COPY, [str(upper)], timeout_s=TIMEOUT_S)
    if done.exit_code or done.timed_out:
        why = done.output.decode(errors="replace").strip()[-500:] or "out of time"
        raise SandboxError(f"the slot's files cannot be copied: {why}")
