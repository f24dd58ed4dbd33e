"""No isolation: slots as plain directories of this host, commands as the worker's own user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hermes_queue.disk.locks import hold
from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.base import SLOT_ENVIRONMENT, AssetSpec
from hermes_queue.sandbox.host.cgroups import ControlGroups
from hermes_queue.sandbox.host.paths import remove_tree
from hermes_queue.sandbox.host.processes import MAX_ROUNDS, MarkedTree, kill_trees
from hermes_queue.sandbox.host.spawner import Confinement, SlotAccount, Spawner, Spawners
from hermes_queue.sandbox.local import assets as asset_store
from hermes_queue.sandbox.local.assets import AssetStore, Build
from hermes_queue.sandbox.local.fence import FenceOptions, SlotDirectories

UNFINISHED = "unfinished"


class TreeKiller:
    """Kills trees of processes for all slots of a backend, see `processes.kill_tree`.

    A thousand commands that are cancelled at once would otherwise read all of /proc a thousand
    times, a few at a time. Those that come while it is read share the next reading.
    """

    def __init__(self) -> None:
        self._due: list[tuple[MarkedTree, asyncio.Future[None]]] = []
        self._working: asyncio.Task[None] | None = None

    async def kill(self, marker: str, root: int | None = None) -> None:
        """Kill one tree."""
        done = asyncio.get_running_loop().create_future()
        self._due.append(((marker, root), done))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        await done

    async def _work(self) -> None:
        try:
            while self._due:
                due, self._due = self._due, []
                try:
                    await asyncio.to_thread(kill_trees, [tree for tree, _ in due])
                except Exception as error:  # noqa: BLE001 - raised to all who wait for it
                    _settle(due, error)
                else:
                    _settle(due)
        finally:
            self._working = None


def _settle(
    due: Sequence[tuple[MarkedTree, asyncio.Future[None]]], error: Exception | None = None
) -> None:
    for _, done in due:
        if not done.done():
            done.set_exception(error) if error else done.set_result(None)


class PlainFence:
    """Finds a slot's commands by a mark in their environment, and does nothing more."""

    def __init__(
        self,
        slot_id: str,
        directories: SlotDirectories,
        options: FenceOptions,
        spawners: Spawners,
        killer: TreeKiller,
    ) -> None:
        self.slot_id = slot_id
        self.workspace = str(directories.workspace)
        self.init_pid = 0
        self.init_started = 0
        self.directories = directories
        self.options = options
        self._spawners = spawners
        self._killer = killer
        self._spawner: Spawner | None = None
        self._killed = False

    async def begin(self) -> None:
        """See `BubblewrapFence`."""
        confinement = Confinement(groups=self.options.groups, limits=self.options.limits)
        self._spawner = await self._spawners.make(confinement)

    @property
    def spawner(self) -> Spawner:
        """See `BubblewrapFence`."""
        assert self._spawner is not None  # noqa: S101 - begun
        return self._spawner

    account: SlotAccount | None = None
    """See `BubblewrapFence`."""
    has_own_network = False
    """See `BubblewrapFence`."""

    @property
    def uid(self) -> int:
        """See `BubblewrapFence`."""
        return os.geteuid()

    def ends(self) -> list[asyncio.Future[Any]]:
        """See `BubblewrapFence`."""
        return [self.spawner.ended]

    def is_alive(self) -> bool:
        """See `Bubblewrap`."""
        lost = self._killed or self.spawner.is_lost
        return not lost and self.directories.workspace.is_dir()

    async def ended_from_inside(self) -> bool:
        """See `Bubblewrap`. It is unknown who ended it."""
        return False

    def environment(self) -> dict[str, str]:
        """See `BubblewrapFence`."""
        path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        return {
            "PATH": f"{self.options.interpreter.home / 'bin'}:{path}",
            "HOME": str(self.directories.home),
            **SLOT_ENVIRONMENT,
            "TMPDIR": str(self.directories.tmp),
        }

    async def kill_tree(self, marker: str, pid: int) -> None:
        """See `Bubblewrap`."""
        await self._killer.kill(marker, pid)

    async def kill(self) -> None:
        """See `Bubblewrap`."""
        self._killed = True  # Before its commands end: what we kill has no result.
        await self._killer.kill(self.slot_id)
        if self.options.groups is not None:
            await asyncio.to_thread(_kill_members, self.options.groups)
        if self._spawner is not None:
            self._spawner.close()


def _kill_members(groups: ControlGroups) -> None:
    """Kill processes that cleared their environment and left their session."""
    for _ in range(MAX_ROUNDS):
        members = groups.members()
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


class InPlaceAssetStore(AssetStore):
    """Assets directly at their mounts: without namespaces a path means the same for all slots.

        /opt/assets/.store/<mount>.occupant     the asset at the mount
                           <mount>.pins         shared lock of every slot that uses it
                           <kind>-<key>         an asset that was moved away for another

    So slots that need different assets at one mount take turns.
    """

    builders = 1

    def __init__(self, cache: Path, build: Build) -> None:
        super().__init__(cache, build)
        self._root = Path(asset_store.MOUNT_ROOT) / ".store"

    def path(self, spec: AssetSpec) -> Path:
        """See `AssetStore`."""
        return Path(spec.mount)

    def is_finished(self, spec: AssetSpec) -> bool:
        """See `AssetStore`."""
        return self._occupant(spec) == _name(spec) and self.path(spec).is_dir()

    def lock_path(self, spec: AssetSpec) -> Path:
        """See `AssetStore`."""
        return self._note(spec, "lock")

    async def ensure(self, spec: AssetSpec) -> Path:
        """See `AssetStore`. Also raises IsolationUnavailable if /opt/assets is not writable."""
        try:
            return await super().ensure(spec)
        except OSError as error:
            raise IsolationUnavailable(
                f"without isolation {spec.kind} {spec.key[:12]} must be at {spec.mount} on this "
                f"host: {error}; use HERMES_QUEUE_LOCAL_ISOLATION=bwrap, or make "
                f"{asset_store.MOUNT_ROOT} writable"
            ) from error

    async def pin(self, spec: AssetSpec) -> Callable[[], None]:
        """See `AssetStore`."""
        while True:
            await self.ensure(spec)
            pin = await hold(self._note(spec, "pins"), shared=True, mode=0o644)
            if self.is_finished(spec):  # else another asset came before our pin
                return lambda: os.close(pin)
            os.close(pin)

    def _note(self, spec: AssetSpec, suffix: str) -> Path:
        return self._root / f"{spec.mount.strip('/').replace('/', '_')}.{suffix}"

    def _occupant(self, spec: AssetSpec) -> str | None:
        try:
            return self._note(spec, "occupant").read_text()
        except FileNotFoundError:
            return None

    async def _make(self, spec: AssetSpec, number: int) -> None:
        """See `AssetStore`. There is only one place to build at, so `number` is 0."""
        lock = await hold(self._note(spec, "pins"), mode=0o644)
        try:
            await self._vacate(spec)
            place, occupant = self.path(spec), self._note(spec, "occupant")
            parked = self._root / _name(spec)
            occupant.write_text(UNFINISHED)
            place.parent.mkdir(parents=True, exist_ok=True)
            if parked.is_dir():
                parked.rename(place)
            else:
                place.mkdir()
                asset_store.check_built(spec, await self._build(spec, place))
            occupant.write_text(_name(spec))
        finally:
            os.close(lock)

    async def _vacate(self, spec: AssetSpec) -> None:
        place, occupant = self.path(spec), self._occupant(spec)
        if occupant in {None, UNFINISHED}:
            if occupant is None and place.exists():
                raise FileExistsError(f"{place} is not one of our assets")
            await asyncio.to_thread(remove_tree, place)
        elif place.exists():
            place.rename(self._root / str(occupant))


def _name(spec: AssetSpec) -> str:
    return f"{spec.kind}-{spec.key}"
