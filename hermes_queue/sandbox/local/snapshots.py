"""Snapshots of this host's slots: archives that processes of the slots make and unpack.

The worker never walks an agent's tree. `tar` does, in the slot and with its rights, so links,
devices, unreadable files and endless names harm nobody but their slot. The worker holds bytes.

    <cache>/snapshots/<id>.json    whose it is; written last
    <cache>/snapshots/<id>.tar     its files
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hermes_queue.cancellation import unbroken
from hermes_queue.errors import NoSnapshot
from hermes_queue.sandbox.base import ExecutionResult
from hermes_queue.sandbox.local.registry import BOOT_ID
from hermes_queue.sandbox.local.slot import LocalSlot
from hermes_queue.sandbox.snapshots import Snapshot
from hermes_queue.settings import LocalSandboxSettings, private_directory

PACK_TIMEOUT_S = 60.0
UNPACK_TIMEOUT_S = 300.0
AT_ONCE = 2
"""Archives that one worker writes at the same time."""
UNFINISHED_S = 600.0
"""Age of a file without its description at which its worker must be dead."""
FORGOTTEN_S = 7 * 86400.0
"""Age at which nobody needs a snapshot, not even of a deployment whose workers are gone."""
_LEAST_BYTES = 1 << 20
_ERROR_CHARS = 300
_BUSY, _SHARED_MEMORY, _SYSTEM_V, _TOO_LONG, _NO_TAR = 75, 76, 77, 78, 127
_TOO_LARGE = 128 + 25
"""The exit code after SIGXFSZ."""

_PATH_BYTES = 4000
"""From this length on, paths are refused: `tar` packs what no system call takes, and then cannot
unpack it."""

# Builtins of bash alone until it is known that the only processes are the first one and this one.
_PACK = f"""
for process in /proc/[0-9]*; do
  [ "$process" = /proc/1 ] || [ "$process" = /proc/$$ ] || exit {_BUSY}
done
shopt -s nullglob dotglob
set -- /dev/shm/*
[ $# = 0 ] || exit {_SHARED_MEMORY}
for kind in shm sem msg; do
  mapfile -n 2 -t lines 2>/dev/null </proc/sysvipc/$kind
  [ ${{#lines[@]}} -lt 2 ] || exit {_SYSTEM_V}
done
ulimit -c 0
cd / && printf -v any '%{_PATH_BYTES}s' && any=${{any// /?}}
found=$(LC_ALL=C exec find workspace home/agent tmp var/tmp -xdev -path "$any*" -printf x -quit)
[ -z "$found" ] || exit {_TOO_LONG}
ulimit -f "$LIMIT_KIB"
exec tar --create --file=- --format=posix --pax-option=delete=atime,delete=ctime \
  --xattrs --xattrs-include='user.*' --sparse --one-file-system \
  --directory=/ workspace home/agent tmp var/tmp
"""
_UNPACK = (
    "exec tar --extract --file=- --preserve-permissions --delay-directory-restore "
    "--xattrs --xattrs-include='user.*' --directory=/"
)
_WHY = {
    _BUSY: "processes run in the background",
    _SHARED_MEMORY: "/dev/shm is not empty",  # noqa: S108 - the slot's
    _SYSTEM_V: "there are System V shared memory, semaphores or messages",
    _TOO_LONG: f"a path has {_PATH_BYTES} bytes or more, and could not be unpacked",
    _NO_TAR: "there is no tar in the slot",
}
_ID = re.compile(r"[0-9a-f]{32}")


class LocalSnapshots:
    """The snapshots below one cache directory, which workers of this host share."""

    def __init__(self, cache: Path, deployment: str, settings: LocalSandboxSettings) -> None:
        self._root = cache / "snapshots"
        self._deployment = deployment
        self._most_bytes = settings.snapshot_max_mb << 20
        self._all_bytes = settings.snapshots_mb << 20
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def take(self, slot: LocalSlot, trajectory_id: str) -> Snapshot:
        """See `KeepsSnapshots.snapshot`."""
        try:
            return await self._take(slot, trajectory_id)
        except OSError as error:  # the disk is full, or not ours
            raise NoSnapshot(f"{self._root} cannot be written: {error.strerror}") from error

    async def _take(self, slot: LocalSlot, trajectory_id: str) -> Snapshot:
        snapshot_id = secrets.token_hex(16)
        async with self._turn:
            room = await asyncio.to_thread(self._room)
            if room < _LEAST_BYTES:
                raise NoSnapshot(f"no room for snapshots is left in {self._root}")
            try:
                size = await self._pack(slot, self._archive(snapshot_id), room)
                about: dict[str, Any] = {
                    "trajectory_id": trajectory_id,
                    "deployment": self._deployment,
                    "boot": BOOT_ID.read_text().strip(),
                    "bytes": size,
                }
                # Cancelled in between, the thread would go on to write what is removed below.
                await unbroken(asyncio.to_thread(self._describe, snapshot_id, about))
            except BaseException:
                self._remove(snapshot_id)
                raise
        return Snapshot(snapshot_id, trajectory_id, size)

    async def _pack(self, slot: LocalSlot, archive: Path, room: int) -> int:
        target = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            done = await slot.run(
                ["/bin/bash"],
                script=_PACK,
                env={"LIMIT_KIB": str(room >> 10)},
                cwd="/",
                timeout_s=PACK_TIMEOUT_S,
                output=target,
            )
            _check(done, "copied")
            return os.fstat(target).st_size
        finally:
            os.close(target)

    async def restore(self, slot: LocalSlot, trajectory_id: str, snapshot_id: str) -> None:
        """See `KeepsSnapshots`."""
        with self._opened(trajectory_id, snapshot_id) as source:
            done = await slot.run(
                ["/bin/bash", "-c", _UNPACK],
                cwd="/",
                timeout_s=UNPACK_TIMEOUT_S,
                source=source,
            )
        try:
            _check(done, "restored")
        except NoSnapshot as error:
            error.may_pass = True
            raise

    @contextmanager
    def _opened(self, trajectory_id: str, snapshot_id: str) -> Iterator[int]:
        """The archive, if it is whole and of this trajectory."""
        about = self._about(snapshot_id) if _ID.fullmatch(snapshot_id) else None
        if about is None:
            raise NoSnapshot("this host does not have the snapshot")
        if about["trajectory_id"] != trajectory_id or about["deployment"] != self._deployment:
            raise NoSnapshot("the snapshot is of another trajectory")
        if about["boot"] != BOOT_ID.read_text().strip():  # it was never synced to the disk
            raise NoSnapshot("the host has been booted since the snapshot")
        try:
            source = os.open(self._archive(snapshot_id), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise NoSnapshot(f"the snapshot cannot be read: {error.strerror}") from error
        try:
            if os.fstat(source).st_size != about["bytes"]:
                raise NoSnapshot("the snapshot is not whole")
            yield source
        finally:
            os.close(source)

    def found(self) -> list[Snapshot]:
        """Those of this deployment; removes what was left unfinished, or long ago. Blocking."""
        found = []
        for path in self._files():
            age_s = _since_change(path)
            if age_s > FORGOTTEN_S:
                self._remove(path.stem)
            elif path.suffix == ".json":
                about = self._about(path.stem)
                if about and about["deployment"] == self._deployment:
                    found.append(Snapshot(path.stem, about["trajectory_id"], about["bytes"], age_s))
            elif age_s > UNFINISHED_S and not path.with_suffix(".json").exists():
                path.unlink(missing_ok=True)
        return found

    def drop(self, snapshot_id: str) -> None:
        """See `KeepsSnapshots.drop_snapshot`. Blocking."""
        if _ID.fullmatch(snapshot_id):
            self._remove(snapshot_id)

    def _room(self) -> int:
        """Bytes that one more snapshot may have: half of the disk's free space at most."""
        private_directory(self._root)
        used = sum(_bytes_on_disk(path) for path in self._files())
        disk = os.statvfs(self._root)
        return min(self._most_bytes, self._all_bytes - used, disk.f_bavail * disk.f_frsize // 2)

    def _files(self) -> list[Path]:
        return list(self._root.iterdir()) if self._root.is_dir() else []

    def _archive(self, snapshot_id: str) -> Path:
        return self._root / f"{snapshot_id}.tar"

    def _describe(self, snapshot_id: str, about: dict[str, Any]) -> None:
        path = self._root / f"{snapshot_id}.json"
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(about))
        unfinished.rename(path)

    def _about(self, snapshot_id: str) -> dict[str, Any] | None:
        try:
            about = json.loads((self._root / f"{snapshot_id}.json").read_text())
            wanted = {"trajectory_id": str, "deployment": str, "boot": str, "bytes": int}
            return about if all(isinstance(about[k], v) for k, v in wanted.items()) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _remove(self, snapshot_id: str) -> None:
        for suffix in (".json", ".tar", ".part"):
            with suppress(OSError):
                (self._root / f"{snapshot_id}{suffix}").unlink(missing_ok=True)


def _check(done: ExecutionResult, what: str) -> None:
    if done.ok:
        return
    if done.timed_out:
        raise NoSnapshot(f"the slot's files cannot be {what} in time")
    if done.exit_code == _TOO_LARGE:
        raise NoSnapshot("the slot's files are larger than a snapshot may be")
    error = done.stderr.decode(errors="replace").strip()[:_ERROR_CHARS]
    why = _WHY.get(done.exit_code) or f"exit code {done.exit_code}: {error}"
    raise NoSnapshot(f"the slot's files cannot be {what}: {why}")


def _since_change(path: Path) -> float:
    return _of_file(path, lambda stat: max(0.0, time.time() - stat.st_mtime))


def _bytes_on_disk(path: Path) -> int:
    return int(_of_file(path, lambda stat: stat.st_blocks * 512))


def _of_file(path: Path, figure: Callable[[os.stat_result], float]) -> float:
    """0 if another worker has removed the file meanwhile."""
    try:
        return figure(path.lstat())
    except OSError:
        return 0
