"""No fence: slots as plain directories of this host, commands as the worker's own user."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.base import AssetSpec
from hermes_queue.sandbox.fence import FenceOptions, SlotDirectories
from hermes_queue.sandbox.processes import MAX_ROUNDS, kill_tree

logger = logging.getLogger(__name__)


class PlainFence:
    """Keeps a slot's commands together by a mark in their environment, nothing more."""

    def __init__(self, slot_id: str, directories: SlotDirectories, options: FenceOptions) -> None:
        self.slot_id = slot_id
        self.workspace = str(directories.workspace)
        self.init_pid = 0
        self.init_started = 0
        self._directories = directories
        self._options = options
        self._alive = False

    async def start(self) -> None:
        """See `Fence`."""
        names = self._directories.root / "bin"
        names.mkdir()
        for name in self._options.interpreter.names():
            (names / name).symlink_to(self._options.interpreter.executable)
        self._alive = True

    def is_alive(self) -> bool:
        """See `Fence`."""
        return self._alive and self._directories.workspace.is_dir()

    def command(self, cwd: str, argv: Sequence[str | bytes]) -> list[str | bytes]:
        """See `Fence`."""
        groups = self._options.groups
        prefix = groups.enter_prefix() if groups else []
        return [*prefix, *self._options.limits, "/usr/bin/env", "-C", cwd, *argv]

    def descriptors(self) -> list[int]:
        """See `Fence`."""
        return []

    def environment(self) -> dict[str, str]:
        """See `Fence`."""
        path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        return {
            "PATH": f"{self._directories.root / 'bin'}:{path}",
            "HOME": str(self._directories.home),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self._directories.tmp),
        }

    async def kill_command(self, command_id: str, pid: int) -> None:
        """See `Fence`."""
        await asyncio.to_thread(kill_tree, command_id, pid)

    async def kill(self) -> None:
        """See `Fence`."""
        self._alive = False
        await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        kill_tree(self.slot_id, None)
        if self._options.groups is None:
            return
        # Those that cleared their environment and left their session are found here.
        for _ in range(MAX_ROUNDS):
            members = self._options.groups.members()
            if not members:
                return
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def link_asset(spec: AssetSpec, target: Path, *, building: Path | None = None) -> None:
    """Make `spec.mount` on this host lead to `target`. There are no private mounts here.

    Raises:
        IsolationUnavailable: another asset is in use at that path, or we may not write it.
    """
    mount, ours = Path(spec.mount), {str(target), str(building or target)}
    try:
        mount.parent.mkdir(parents=True, exist_ok=True)
        current = os.readlink(mount) if mount.is_symlink() else None
        if current == str(target):
            return
        if current is None and mount.exists():
            raise FileExistsError(f"{mount} is not a link")
        if current is not None and current not in ours and Path(current).exists():
            raise FileExistsError(f"{mount} leads to another asset, {current}")
        unfinished = mount.with_name(f".{mount.name}.{os.getpid()}")
        unfinished.symlink_to(target)
        unfinished.rename(mount)
    except OSError as error:
        raise IsolationUnavailable(
            f"without isolation asset {spec.kind} needs {mount} on this host to lead to {target}: "
            f"{error}; use HERMES_QUEUE_LOCAL_ISOLATION=bwrap, or make {mount.parent} writable"
        ) from error
