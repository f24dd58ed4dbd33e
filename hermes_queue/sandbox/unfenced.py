"""No fence: slots as plain directories of this host, commands as the worker's own user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.asset_store import AssetStore
from hermes_queue.sandbox.base import AssetSpec
from hermes_queue.sandbox.execution import unbroken
from hermes_queue.sandbox.fence import FenceOptions, SlotDirectories
from hermes_queue.sandbox.host_paths import remove_tree
from hermes_queue.sandbox.processes import MAX_ROUNDS, kill_tree

UNFINISHED = "unfinished"


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
            "PATH": f"{self._options.interpreter.home / 'bin'}:{path}",
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


class InPlaceAssetStore(AssetStore):
    """Assets at their very mounts: without namespaces a path means the same for everyone.

    Which asset occupies a mount is written to `<cache>/assets/<mount>.owner`.
    """

    def path(self, spec: AssetSpec) -> Path:
        """See `AssetStore`."""
        return Path(spec.mount)

    def is_finished(self, spec: AssetSpec) -> bool:
        """See `AssetStore`."""
        return self._occupant(spec) == f"{spec.kind}-{spec.key}" and self.path(spec).is_dir()

    def lock_path(self, spec: AssetSpec) -> Path:
        """See `AssetStore`."""
        return self._owner_path(spec).with_suffix(".lock")

    def _owner_path(self, spec: AssetSpec) -> Path:
        return self._root / f"{spec.mount.strip('/').replace('/', '_')}.owner"

    def _occupant(self, spec: AssetSpec) -> str | None:
        try:
            return self._owner_path(spec).read_text()
        except FileNotFoundError:
            return None

    async def _make(self, spec: AssetSpec) -> None:
        place, owner, name = self.path(spec), self._owner_path(spec), f"{spec.kind}-{spec.key}"
        occupant = self._occupant(spec)
        if place.exists() and occupant not in {name, UNFINISHED}:
            raise IsolationUnavailable(
                f"without isolation {spec.kind} {spec.key[:12]} needs {place} on this host, which "
                f"holds {occupant or 'something else'}; use HERMES_QUEUE_LOCAL_ISOLATION=bwrap"
            )
        try:
            owner.write_text(UNFINISHED)
            await asyncio.to_thread(remove_tree, place)
            place.mkdir(parents=True)
        except OSError as error:
            raise IsolationUnavailable(
                f"without isolation {spec.kind} {spec.key[:12]} has to be built at {place} on this "
                f"host: {error}; use HERMES_QUEUE_LOCAL_ISOLATION=bwrap, or make it writable"
            ) from error
        try:
            self._check(spec, await self._build(spec, place))
            owner.write_text(name)
        except BaseException:
            await unbroken(asyncio.to_thread(remove_tree, place))
            raise
