"""In what a slot's files differ from its image, and copies of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

from hermes_queue.errors import SandboxError
from hermes_queue.images.steps import LayerStack
from hermes_queue.sandbox.image_slots import FileChange
from hermes_queue.sandbox.rootfs.host import RootfsHost

MOST_CHANGES = 200_000
TIMEOUT_S = 300.0
TOO_MANY = 3
# Arguments: the tree of the image, the directory with the slot's changes, the most changes.
# Directories are opened one by one without following links, because the slot may be running.
_LIST = r'''
import os, resource, stat, sys
image, changes, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
out, count = sys.stdout.buffer, 0

def say(kind, path):
    global count
    count += 1
    if count > most:
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
while stack:
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
out.flush()
'''
# Arguments: the new directory, the directory with a slot's changes.
_COPY = """
import os, sys
words = ["cp", "-a", "--reflink=auto", "--", sys.argv[2] + "/.", sys.argv[1]]
os.execvp("cp", words)
"""


async def changes(
    host: RootfsHost, lower: Sequence[Path], upper: Path, hidden: Sequence[str]
) -> list[FileChange]:
    """See `ImageSlots.changes`; nothing at or below the paths `hidden`, which are mounted over.

    Raises SandboxError.
    """
    with tempfile.TemporaryFile() as file:
        done = await host.edit(
            LayerStack(tuple(lower), None),
            _LIST,
            [str(upper), str(MOST_CHANGES)],
            stdout=file,
            timeout_s=TIMEOUT_S,
        )
        if done.exit_code == TOO_MANY:
            raise SandboxError(f"the slot differs from its image in over {MOST_CHANGES} files")
        if done.exit_code or done.timed_out:
            why = done.output.decode(errors="replace").strip()[-500:] or "out of time"
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
