"""Finished assets on this host's disk: built by the first user, then read-only.

<cache>/assets/<kind>-<key>         finished, appears by rename
               <kind>-<key>.lock    held while it is built, across processes; see `build_turn`
               .<kind>-<key>.new    being built
               *.lock.1, *.new.1    the same, beside a suspended builder
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath

from hermes_queue.cancellation import unbroken
from hermes_queue.disk.turn import PLACES, build_turn
from hermes_queue.errors import EnvBug, EnvInfraError, SandboxError
from hermes_queue.sandbox.base import MAX_FILE_BYTES, AssetSpec, ExecutionResult
from hermes_queue.sandbox.host.paths import remove_tree, shared_directory, slot_directory

MOUNT_ROOT = PurePosixPath("/opt/assets")
TAIL_CHARS = 4000
BUILDS_AT_ONCE = max(2, os.cpu_count() or 2)

Build = Callable[[AssetSpec, Path], Awaitable[ExecutionResult]]
"""Runs the spec's script with the given empty host directory mounted at its `mount`."""


def check_asset(spec: AssetSpec) -> None:
    """Refuse specs that do not give a directory name or a mount. Raises EnvBug: names the field."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,30}", spec.kind):
        raise EnvBug(f"asset kind {spec.kind!r} is not a short lower-case word")
    if not re.fullmatch(r"[0-9a-f]{8,128}", spec.key):
        raise EnvBug(f"asset key {spec.key!r} is not a hex digest")
    mount = PurePosixPath(spec.mount)
    clean = spec.mount == str(mount) and ".." not in mount.parts
    if not clean or MOUNT_ROOT not in mount.parents:
        raise EnvBug(f"asset mount {spec.mount!r} is not a normal path below {MOUNT_ROOT}")


class AssetStore:
    """The assets below one cache directory."""

    builders = PLACES
    """Builders of one asset at once; all but the last are suspended."""

    def __init__(self, cache: Path, build: Build) -> None:
        self._root = cache / "assets"
        self._build = build
        self._builds = asyncio.Semaphore(BUILDS_AT_ONCE)

    def path(self, spec: AssetSpec) -> Path:
        """Host path of the finished asset."""
        return self._root / f"{spec.kind}-{spec.key}"

    def is_finished(self, spec: AssetSpec) -> bool:
        """Whether it needs no building."""
        return self.path(spec).is_dir()

    def lock_path(self, spec: AssetSpec) -> Path:
        """The file whose lock its builder holds."""
        return self._root / f"{spec.kind}-{spec.key}.lock"

    async def ensure(self, spec: AssetSpec) -> Path:
        """The finished asset, built now unless it exists.

        Raises:
            EnvInfraError: its script failed or ran out of time, and nothing is left of it; or
                suspended processes hold its locks.
            SandboxError: the sandbox for the build could not run.
            EnvBug: the spec is malformed.
        """
        check_asset(spec)
        if not self.is_finished(spec):
            shared_directory(self._root)
            turn = build_turn(
                self.lock_path(spec),
                places=self.builders,
                is_finished=lambda: self.is_finished(spec),
            )
            async with turn as number, self._builds:
                if number is not None and not self.is_finished(spec):
                    await self._make(spec, number)
        return self.path(spec)

    async def _make(self, spec: AssetSpec, number: int) -> None:
        """Build it; no other process has the same `number`."""
        place = self.path(spec)
        unfinished = place.with_name(f".{place.name}.new{f'.{number}' if number else ''}")
        try:
            # A killed builder leaves its directory behind.
            await asyncio.to_thread(remove_tree, unfinished)
            slot_directory(unfinished)
            try:
                check_built(spec, await self._build(spec, unfinished))
                try:
                    unfinished.rename(place)
                except OSError:
                    # While we were suspended another process built the same asset; it is in use.
                    if not self.is_finished(spec):
                        raise
            finally:
                await unbroken(asyncio.to_thread(remove_tree, unfinished))
        except OSError as error:
            raise SandboxError(f"{spec.kind} {spec.key[:12]} cannot be stored: {error}") from error

    async def pin(self, spec: AssetSpec) -> Callable[[], None]:
        """Make the asset and keep it at its mount; call the result to unpin it."""
        await self.ensure(spec)
        return lambda: None  # finished assets stay where they are


def check_built(spec: AssetSpec, result: ExecutionResult) -> None:
    """Raise EnvInfraError if the script failed, with the end of its output."""
    if result.ok:
        return
    how = f"failed with exit code {result.exit_code}"
    if result.timed_out:
        how = f"ran out of time after {spec.timeout_s:g} s"
    tail = result.output.strip()[-TAIL_CHARS:]
    raise EnvInfraError(
        f"building {spec.kind} {spec.key[:12]} {how}; its output ends with:\n{tail}"
    )


def parts_inside(path: str) -> tuple[str, ...]:
    """The parts of a path relative to an asset. Raises FileNotFoundError if it leads out of it."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise FileNotFoundError(errno.ENOENT, "not a path inside the asset", path)
    return parts


def read_regular_file(root: Path, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Bytes of a regular file below `root`; no link is followed. Blocking.

    Raises:
        FileNotFoundError: not there, a link, or not a regular file.
        SandboxError: larger than `max_bytes`, or unreadable.
    """
    parts = parts_inside(path)
    descriptor = -1
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            kind = os.O_NONBLOCK if is_last else os.O_DIRECTORY
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind
            inner = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}:
            raise FileNotFoundError(errno.ENOENT, error.strerror, path) from error
        raise SandboxError(f"asset file {path!r} cannot be read: {error}") from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    if len(data) > max_bytes:
        raise SandboxError(f"asset file {path!r} is larger than {max_bytes} bytes")
    return data
