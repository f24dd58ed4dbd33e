"""A running slot with an image: its users, and its files without programs of the slot."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from hermes_queue.errors import SandboxError, SandboxRejected
from hermes_queue.images.users import MAX_FILE_CHARS, identity
from hermes_queue.sandbox.host.spawner import Account
from hermes_queue.sandbox.host.spawner_process import (
    NO_REGULAR_FILE,
    READ_FILE,
    WRITE_FILE,
)
from hermes_queue.sandbox.local.slot import LocalSlot
from hermes_queue.sandbox.rootfs.fence import RootfsFence

FILE_TIMEOUT_S = 60.0


class RootfsSlot(LocalSlot):
    """See `LocalSlot`. The agent may be root: nothing here trusts a program of the slot."""

    fence: RootfsFence

    def __init__(self, fence: RootfsFence, record: Path, *, remove: Callable[[Path], None]) -> None:
        super().__init__(fence, record, remove=remove)
        self.lost_because = ""
        """Why the worker has ended it."""

    async def become(self, user: str) -> None:
        """Have commands run as this user of the image. Raises SandboxRejected, SandboxError."""
        self.fence.account = await self.account(user)

    async def account(self, user: str) -> Account:
        """A user as the slot's files name it now, see `ImageConfig.user`.

        Raises:
            SandboxRejected: there is no such user.
            SandboxError: the slot could not answer.
        """
        root = Account(0, 0, (), "/root", self.fence.options.uid)
        try:
            found = identity(
                await self._text("/etc/passwd", root), await self._text("/etc/group", root), user
            )
        except ValueError as error:
            raise SandboxRejected(str(error)) from error
        host_uid = self.fence.options.ids.host_uid(found.uid)
        return Account(found.uid, found.gid, found.groups, found.home, host_uid)

    async def _text(self, path: str, account: Account) -> str:
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
