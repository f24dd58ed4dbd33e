"""Directories on the worker's host for slots: made, checked, given to a uid, deleted."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from hermes_queue.disk.locks import lock, lock_holder
from hermes_queue.errors import EnvInfraError, IsolationUnavailable

LOCK_TIMEOUT_S = 300.0
"""Longer than any work under `locked` takes: copies of some ten megabytes."""
LOCK_PAUSE_S = 0.05

SLOT_UID = 65534
"""Uid of a root worker's slots, outside of their namespaces."""


def is_root() -> bool:
    """Whether slots must run as `SLOT_UID`."""
    return os.geteuid() == 0


def shared_directory(path: Path, mode: int = 0o755) -> Path:
    """Create `path` (parents too) with exactly `mode`, regardless of the umask."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for place in reversed(missing):
        with contextlib.suppress(FileExistsError):
            place.mkdir()
            place.chmod(mode if place == path else 0o755)
    return path


def slot_directory(
    path: Path, mode: int = 0o755, *, give: bool = True, owner: int = SLOT_UID
) -> Path:
    """Create `path`; with `give` it belongs to `owner` if we are root."""
    path.mkdir()
    path.chmod(mode)
    if give and is_root():
        os.chown(path, owner, owner)
    return path


def open_tree(root: Path, *, most: int = 0o7777) -> None:
    """Let everybody read a tree that nobody changes meanwhile; `most` limits modes. Blocking."""
    for directory, _, files in os.walk(root):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            mode = os.lstat(path).st_mode
            opened = stat.S_IMODE(mode) & most | (0o5 if mode & 0o100 else 0o4)
            if stat.S_IMODE(mode) != opened and not stat.S_ISLNK(mode):
                os.chmod(path, opened)


def is_reachable(path: Path) -> bool:
    """Whether the slots' uid may read `path` and pass through all its parents."""
    if not is_root():
        return os.access(path, os.R_OK)
    required = 0o5 if path.is_dir() else 0o4
    if path.stat().st_mode & required != required:
        return False
    return all(parent.stat().st_mode & 0o1 for parent in path.resolve().parents)


def check_cache(cache: Path, *, fenced: bool) -> None:
    """Make the cache directory. Raises IsolationUnavailable: isolated slots cannot reach it."""
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
    """Delete a slot's leftovers, including directories without rights and deep nests. Blocking.

    Its processes must be dead: nothing here defends against a tree that changes meanwhile.

    Raises:
        OSError: something is still there.
    """
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # Foreign modes, or paths longer than the kernel allows: these two walk by descriptor.
        for argv in (["chmod", "-R", "u+rwx", "--"], ["rm", "-rf", "--"]):
            subprocess.run([*argv, str(path)], capture_output=True, check=False)  # noqa: S603
    if path.exists():
        raise OSError(f"{path} could not be deleted")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, which stays. Blocking. Raises EnvInfraError after `LOCK_TIMEOUT_S`."""
    ends = time.monotonic() + LOCK_TIMEOUT_S
    with path.open("a") as file:
        while not lock(file.fileno()):
            if time.monotonic() > ends:
                raise EnvInfraError(
                    f"{path} has been held by {lock_holder(path)} for {LOCK_TIMEOUT_S:g} s: resume "
                    "or end it if it is suspended (kill -CONT PID, kill -9 PID)"
                )
            time.sleep(LOCK_PAUSE_S)
        yield
