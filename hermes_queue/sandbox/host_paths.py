"""Directories on the worker's host that slots use: made, checked, given away, deleted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hermes_queue.errors import IsolationUnavailable

SLOT_UID = 65534
"""What slots of a root worker run as, outside of their namespaces."""


def is_root() -> bool:
    """Whether slots have to run as `SLOT_UID`."""
    return os.geteuid() == 0


def shared_directory(path: Path, mode: int = 0o755) -> Path:
    """Create `path` (parents too) with exactly `mode`, whatever the umask says."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for place in reversed(missing):
        with contextlib.suppress(FileExistsError):
            place.mkdir()
            place.chmod(mode if place == path else 0o755)
    return path


def slot_directory(
    path: Path, mode: int = 0o755, *, give: bool = True, owner: int = SLOT_UID
) -> Path:
    """Create `path`; with `give` it belongs to `owner` when we are root."""
    path.mkdir()
    path.chmod(mode)
    if give and is_root():
        os.chown(path, owner, owner)
    return path


def open_tree(root: Path) -> None:
    """Let everybody read the tree `root`, in which nothing changes meanwhile. Blocking."""
    for directory, _, files in os.walk(root):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            mode = os.lstat(path).st_mode
            wanted = mode | (0o5 if mode & 0o100 else 0o4)
            if mode != wanted and not stat.S_ISLNK(mode):
                os.chmod(path, stat.S_IMODE(wanted))


def is_reachable(path: Path) -> bool:
    """Whether the slots' uid may read `path` and pass through all its parents."""
    if not is_root():
        return os.access(path, os.R_OK)
    wanted = 0o5 if path.is_dir() else 0o4
    if path.stat().st_mode & wanted != wanted:
        return False
    return all(parent.stat().st_mode & 0o1 for parent in path.resolve().parents)


def check_cache(cache: Path, *, fenced: bool) -> None:
    """Make the cache directory and check that slots, where they are fenced, can reach it.

    Raises:
        IsolationUnavailable: a directory on the way is closed, or it cannot be made.
    """
    fix = "set HERMES_QUEUE_PATHS_CACHE to a directory that slots can reach"
    try:
        shared_directory(cache)
    except OSError as error:
        raise IsolationUnavailable(f"cannot create the cache {cache}: {error}; {fix}") from error
    if not os.access(cache, os.W_OK):
        raise IsolationUnavailable(f"the cache {cache} is not writable; {fix}")
    if not (fenced and is_root()):
        return
    for place in (cache.resolve(), *cache.resolve().parents):
        if not place.stat().st_mode & 0o1:
            raise IsolationUnavailable(
                f"slots run as uid {SLOT_UID} and cannot pass through {place}, "
                f"on the way to the cache {cache}; {fix}, or chmod o+x {place}"
            )


def remove_tree(path: Path) -> None:
    """Delete what a slot left, directories without rights and deep nests included. Blocking.

    Its processes must be dead: nothing here defends against a tree that changes meanwhile.

    Raises:
        OSError: something is still there.
    """
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # Foreign modes, or paths longer than the kernel takes: these two walk by descriptor.
        for argv in (["chmod", "-R", "u+rwx", "--"], ["rm", "-rf", "--"]):
            subprocess.run([*argv, str(path)], capture_output=True, check=False)  # noqa: S603
    if path.exists():
        raise OSError(f"{path} could not be deleted")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` against other processes. Blocking; the file stays."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
