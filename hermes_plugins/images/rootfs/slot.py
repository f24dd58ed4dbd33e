"""A running slot with an image: its users, and its files without programs of the slot."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_plugins.images.rootfs.fence import RootfsFence
from hermes_plugins.images.steps import Rootfs
from hermes_plugins.images.users import MAX_FILE_CHARS, identity
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import SandboxError, SandboxRejected, SlotKilled, SlotLost
from hermes_queue.sandbox.base import ExecutionResult
from hermes_queue.sandbox.host.spawner import SlotAccount
from hermes_queue.sandbox.host.spawner_process import (
    NO_REGULAR_FILE,
    READ_FILE,
    WRITE_FILE,
)
from hermes_queue.sandbox.local.slot import LocalSlot

logger = logging.getLogger(__name__)

FILE_TIMEOUT_S = 60.0
MEASURE_S, MEASURE_SHARE = 5.0, 20
"""Pause between two measurements of a slot's files: seconds, or this multiple of what the last one
took, whichever is longer."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Disk space."""

    megabytes: int
    files: int


MeasureDisk = Callable[[Path, int], Awaitable[DiskUsage | None]]
"""The usage of a directory and of files without names that processes beside a first one hold; None:
it takes too long."""
NOT_COUNTED = "its files could not be counted in time"


async def overfull(directory: Path, first_pid: int, most: DiskUsage, measure: MeasureDisk) -> str:
    """Measure again and again until there is more than `most`; returns what is too much.

    `NOT_COUNTED` is nobody's fault: a disk that is slow or hangs may be the reason.
    """
    took_s = 0.0
    while True:
        await asyncio.sleep(max(MEASURE_S, MEASURE_SHARE * took_s))
        began = time.monotonic()
        try:
            used = await measure(directory, first_pid)
        except (OSError, SandboxError) as error:  # no process, memory or descriptor is left
            extra = {"action": "disk_not_measured"}
            logger.warning("%s is not measured now: %s", directory, error, extra=extra)
            continue
        if used is None:
            return NOT_COUNTED
        if used.megabytes > most.megabytes:
            return f"its files take more than {most.megabytes} MB of disk space"
        if used.files > most.files:
            return f"it has more than {most.files} files beside its image"
        took_s = time.monotonic() - began


class HeldImage:
    """An image that stays on the disk as long as somebody holds it."""

    def __init__(
        self,
        rootfs: Rootfs,
        free: Callable[[], None],
        accounts: Mapping[str, SlotAccount] | None = None,
    ) -> None:
        """`free` is called when nobody holds it any more."""
        self.rootfs = rootfs
        self.accounts = dict(accounts or {})
        """Users by their names, as a slot found them before its agent could change their list."""
        self._free = free
        self._holders = 1

    def hold(self) -> HeldImage:
        """Once more."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Once less."""
        self._holders -= 1
        if self._holders == 0:
            self._free()


class RootfsSlot(LocalSlot):
    """See `LocalSlot`. The agent may be root: nothing here trusts a program of the slot."""

    fence: RootfsFence

    def __init__(
        self,
        fence: RootfsFence,
        record: Path,
        *,
        remove: Callable[[Path], Awaitable[None]],
        image: HeldImage | None = None,
        disk_mb: int | None = None,
    ) -> None:
        """A slot that has not begun.

        Args:
            fence: its first process.
            record: see `LocalSlot`.
            remove: deletes its files at a path, now or soon; never raises.
            image: what it starts from.
            disk_mb: what its task wants, None = as the settings say.
        """
        super().__init__(fence, record, remove=lambda path: None)
        self._remove_files = remove
        self.disk_mb = disk_mb
        self._image = image
        self._kept: Path | None = None
        self._lost_because = ""
        """Why the worker has ended it for its files."""
        self._measuring: asyncio.Task[None] | None = None

    @property
    def image(self) -> HeldImage:
        """What it was started from. Steps of builds have none."""
        assert self._image is not None  # noqa: S101 - of a lease
        return self._image

    def keep_files(self) -> Path:
        """Where its own files will be once it has ended; nobody deletes them."""
        root = self.fence.directories.root
        self._kept = root.with_name(f"{root.name}-kept")
        return self._kept

    def _clear(self) -> None:
        if self._kept is not None:
            with contextlib.suppress(OSError):  # Then whoever wants them finds none.
                self.fence.directories.upper.rename(self._kept)
        super()._clear()

    def limit_disk(self, most: DiskUsage, measure: MeasureDisk) -> None:
        """End the slot when its files take more than this."""
        self._measuring = asyncio.create_task(self._watch_disk(most, measure))

    async def _watch_disk(self, most: DiskUsage, measure: MeasureDisk) -> None:
        fence = self.fence
        self._lost_because = await overfull(fence.directories.upper, fence.init_pid, most, measure)
        extra = {"action": "slot_disk_full"}
        logger.warning("%s is ended: %s", self.fence.name, self._lost_because, extra=extra)
        await self.fence.kill()

    async def _lost(self, how: str) -> SlotLost:
        if self._lost_because == NOT_COUNTED:
            return SlotLost(f"slot {self.fence.slot_id} was ended: {NOT_COUNTED}")
        if self._lost_because:
            setting = "HERMES_QUEUE_LOCAL_IMAGE_DISK_MB"
            fix = "its task wants no more" if self.disk_mb else f"{setting} allows more"
            return SlotKilled(
                f"slot {self.fence.slot_id} was ended because {self._lost_because}; {fix}"
            )
        return await super()._lost(how)

    async def end(self) -> bool:
        """See `LocalSlot`."""
        if self._measuring is not None:
            await end_tasks(self._measuring)
        is_dead = await super().end()
        await self._remove_files(self.fence.directories.root)
        return is_dead

    async def become(self, user: str) -> None:
        """Have commands run as this user of the image, also if its list of users has changed.

        Raises SandboxRejected, SandboxError.
        """
        known = self._image.accounts if self._image else {}
        if user not in known:
            known[user] = await self.account(user)
        self.fence.account = known[user]

    async def run_as(self, user: str, argv: Sequence[str], **options: Any) -> ExecutionResult:
        """As `run`, as a user of the slot. Raises SandboxRejected, too: there is no such user."""
        return await self.run(argv, account=await self.account(user), **options)

    async def account(self, user: str) -> SlotAccount:
        """A user as the slot's files name it now, see `ImageConfig.user`.

        Raises:
            SandboxRejected: there is no such user.
            SandboxError: the slot could not answer.
        """
        root = SlotAccount(0, 0, (), "/root", self.fence.options.uid)
        try:
            found = identity(
                await self._text("/etc/passwd", root), await self._text("/etc/group", root), user
            )
        except ValueError as error:
            raise SandboxRejected(str(error)) from error
        host_uid = self.fence.options.ids.host_uid(found.uid)
        return SlotAccount(found.uid, found.gid, found.groups, found.home, host_uid)

    async def _text(self, path: str, account: SlotAccount) -> str:
        words = ["", READ_FILE.decode(), path, str(MAX_FILE_CHARS)]
        done = await self.run(
            words,
            cwd="/",
            timeout_s=FILE_TIMEOUT_S,
            account=account,
            max_output_bytes=MAX_FILE_CHARS + 1,
        )
        return done.stdout.decode(errors="replace") if done.ok else ""

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """See `SandboxBackend.read_file`."""
        if "\0" in path:
            raise FileNotFoundError(errno.ENOENT, "a NUL byte in the path", path)
        done = await self.run(
            ["", READ_FILE.decode(), path, str(max_bytes + 1)],
            cwd="/",
            timeout_s=FILE_TIMEOUT_S,
            max_output_bytes=max_bytes + 2,
        )
        if done.timed_out or (done.ok and done.truncated and len(done.stdout) <= max_bytes):
            raise SandboxError(f"{path} could not be read within {FILE_TIMEOUT_S:g} s")
        if not done.ok:
            raise FileNotFoundError(errno.ENOENT, "no such regular file", path)
        if len(done.stdout) > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
        return done.stdout

    async def write_file(self, path: str, data: bytes) -> None:
        """See `SandboxBackend.write_file`."""
        if "\0" in path:
            raise FileNotFoundError(errno.ENOENT, "a NUL byte in the path", path)
        done = await self.run(
            ["", WRITE_FILE.decode(), path], stdin=data, cwd="/", timeout_s=FILE_TIMEOUT_S
        )
        if done.timed_out:
            raise SandboxError(f"{path} could not be written within {FILE_TIMEOUT_S:g} s")
        if done.exit_code == NO_REGULAR_FILE:
            raise OSError(errno.EISDIR, "not a regular file", path)
        if not done.ok:
            raise OSError(errno.EACCES, done.output.strip() or "cannot be written", path)
