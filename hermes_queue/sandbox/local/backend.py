"""The local backend: slots on the worker's own host, one bubblewrap each.

All slots of one backend form one logical sandbox (`local-<host>-<token>`). If this worker dies,
other workers on the host can list and end it. Nothing bills here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox.base import (
    MAX_FILE_BYTES,
    AssetSpec,
    Capabilities,
    ExecutionResult,
    SandboxInfo,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.builds.network import run_fenced
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.host import cgroups, interpreter
from hermes_queue.sandbox.host import pip as pip_settings
from hermes_queue.sandbox.host.isolation import FencePrograms, find_tools, host_python, shortcomings
from hermes_queue.sandbox.host.paths import SLOT_UID, check_cache
from hermes_queue.sandbox.local.assets import AssetStore, read_regular_file
from hermes_queue.sandbox.local.fence import Bind, BubblewrapFence, FenceOptions, SlotDirectories
from hermes_queue.sandbox.local.leased import LeasedSlots
from hermes_queue.sandbox.local.registry import HostRegistry, record_slot
from hermes_queue.sandbox.local.slot import LocalSlot
from hermes_queue.sandbox.local.snapshots import LocalSnapshots
from hermes_queue.sandbox.local.unfenced import InPlaceAssetStore, PlainFence, TreeKiller
from hermes_queue.sandbox.profiles import refuse_but_default, refuse_images
from hermes_queue.sandbox.snapshots import Snapshot
from hermes_queue.settings import LocalSandboxSettings, WorkerSettings

logger = logging.getLogger(__name__)

BUILD_MEMORY_MB = 4096


class LocalBackend(LeasedSlots):
    """See `SandboxBackend`.

    Its event loop's thread must live as long as the worker: slots die with it.
    """

    def __init__(
        self,
        settings: LocalSandboxSettings | None = None,
        *,
        slots: int | None = None,
        labels: Mapping[str, str] | None = None,
        cache: Path | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        settings = settings or LocalSandboxSettings()
        slots = slots or settings.slots or WorkerSettings().concurrency
        super().__init__(slots, labels, cache, fleet, settings)
        fenced = settings.isolation == "bwrap"
        self.capabilities = Capabilities(isolation=fenced, snapshot=fenced)
        self._registry = HostRegistry(self._cache)
        store = AssetStore if self.capabilities.isolation else InPlaceAssetStore
        self._assets = store(self._cache, self._build_asset)
        self._snapshots = LocalSnapshots(self._cache, self.labels["deployment"], self.settings)
        self._killer = TreeKiller()
        self._tools: FencePrograms | None = None
        self._sandbox: Path | None = None
        self._reaper: asyncio.Task[None] | None = None

    # --- life cycle -------------------------------------------------------------------

    async def start(self) -> None:
        """See `SandboxBackend`. Also ends sandboxes that dead workers left on this host."""
        async with self._opening:
            if self._started:
                return
            await asyncio.to_thread(self._check_host)
            await self._reclaim()
            await self._open_sandbox()
            self._started = True
            self._reaper = asyncio.create_task(self._reap())

    async def _reclaim(self) -> None:
        if ended := await asyncio.to_thread(self._registry.reclaim):
            names, extra = ", ".join(ended), {"action": "reclaim"}
            logger.info("removed sandboxes of dead workers: %s", names, extra=extra)

    async def _reap(self) -> None:
        """End what dead workers of this host left: a free lock shows that one is dead."""
        while True:
            await asyncio.sleep(self.settings.reap_s)
            try:
                await self._reclaim()
            except OSError as error:
                logger.warning(
                    "cannot list sandboxes: %s", error, extra={"action": "reclaim_failed"}
                )

    def _check_host(self) -> None:
        check_cache(self._cache, fenced=self.capabilities.isolation)
        if self.capabilities.isolation:
            self._tools = find_tools(self._cache)
        for lack in shortcomings(self.settings, self._tools):
            logger.warning("%s; %s", lack.what, lack.fix, extra={"action": "start"})
        if not self.capabilities.isolation:
            logger.warning(
                "isolation is off: agent commands run as this user, with its files and network",
                extra={"action": "start"},
            )
            return
        host_python()

    async def _open_sandbox(self) -> None:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node()) or "host"
        sandbox_id = f"local-{host}-{secrets.token_hex(6)}"
        directory = await asyncio.to_thread(self._registry.open, sandbox_id, self.labels)
        if self._sandbox is not None:  # ended by another process
            self._observer.gone(self._sandbox.name)
        self._sandbox = directory
        await self._observer.created(sandbox_id, self.labels)

    async def stop(self) -> None:
        """See `SandboxBackend`."""
        self._started = False
        reaper, self._reaper = self._reaper, None
        if reaper:
            await end_tasks(reaper)
        await asyncio.gather(*map(self._end_slot, list(self._slots)))
        await self._close()
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            self._observer.gone(sandbox.name)
            try:
                await asyncio.to_thread(self._registry.end, sandbox.name)
            except OSError as error:
                extra = {"action": "sandbox_left"}
                logger.warning("cannot remove sandbox %s: %s", sandbox, error, extra=extra)

    async def _close(self) -> None:
        """Free what slots share; they have ended."""
        await self._spawners.close()
        self._uids.close()

    # --- assets -----------------------------------------------------------------------

    async def prepare(self, spec: SlotSpec) -> None:
        """See `SandboxBackend`."""
        refuse_but_default(spec.profile)
        await self._prepare_root(spec)
        await asyncio.gather(*(self._assets.ensure(asset) for asset in spec.assets))

    async def _prepare_root(self, spec: SlotSpec) -> None:
        refuse_images("local", spec, plugin="images")
        await asyncio.to_thread(interpreter.prepare, spec.python, self._cache)

    async def read_asset(
        self, asset: AssetSpec, path: str, *, max_bytes: int = MAX_FILE_BYTES
    ) -> bytes:
        """See `SandboxBackend`."""
        unpin = await self._assets.pin(asset)
        try:
            root = self._assets.path(asset)
            return await asyncio.to_thread(read_regular_file, root, path, max_bytes=max_bytes)
        finally:
            unpin()

    async def _build_asset(self, spec: AssetSpec, directory: Path) -> ExecutionResult:
        pip = await asyncio.to_thread(pip_settings.prepare, self._cache)
        mounts = ("--bind", str(directory), spec.mount, *pip.mount_arguments())
        slot = await self._begin_slot(spec.python, building=mounts)
        try:
            if self.capabilities.isolation:
                return await run_fenced(slot, spec, pip, self.settings.build_hosts)
            hq_pip = pip_settings.COMMAND.replace(pip_settings.MOUNT, str(pip.package))
            return await slot.run(
                ["/bin/bash", "-eu"],
                script=spec.script,
                env={**dict(pip.environment), "HQ_PIP": hq_pip},
                cwd=spec.mount,
                timeout_s=spec.timeout_s,
            )
        finally:
            await unbroken(self._end_slot(slot.fence.slot_id))

    # --- slots ------------------------------------------------------------------------

    async def _lease(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        binds: list[Bind] = []
        with contextlib.ExitStack() as pins:
            # In the same order everywhere: unfenced slots may wait for a mount, and two slots that
            # took two mounts in opposite orders would wait for each other.
            for asset in sorted(spec.assets, key=lambda asset: asset.mount):
                pins.callback(await self._assets.pin(asset))
                await self._uids.let_read(self._assets.path(asset))
                binds.append((str(self._assets.path(asset)), asset.mount, True))
            running = await self._begin(spec, binds, pins)
            pins.callback(self._observer.released, running.fence.slot_id)
            running.on_end = pins.pop_all().close
        return self._leased(running, trajectory_id, spec)

    async def _begin(
        self, spec: SlotSpec, binds: Sequence[Bind], pins: contextlib.ExitStack
    ) -> LocalSlot:
        """Start a slot for a lease; `pins` end with it."""
        return await self._begin_slot(spec.python, binds, conceal=spec.conceal)

    def _leased(self, running: LocalSlot, trajectory_id: str, spec: SlotSpec) -> Slot:
        running.has_capacity = True
        image, config = self._root_of(running, spec)
        slot = Slot(
            slot_id=running.fence.slot_id,
            trajectory_id=trajectory_id,
            sandbox_id=running.record.parent.name,
            workspace=running.fence.workspace,
            spec=spec,
            image=image,
            image_config=config,
        )
        self._observer.leased(slot)
        return slot

    def _root_of(self, running: LocalSlot, spec: SlotSpec) -> tuple[str, ImageConfig | None]:
        """For `Slot.image` and `Slot.image_config`."""
        return interpreter.host_image(spec.python), None

    async def _place(self, kind: str) -> Path:
        """A new path for the files of a slot."""
        async with self._opening:
            if not self._started:
                raise SandboxError("the local backend is not running")
            if self._sandbox is None or not self._sandbox.is_dir():
                await self._open_sandbox()
            assert self._sandbox is not None  # noqa: S101 - opened above
            return self._sandbox / f"{kind}-{secrets.token_hex(8)}"

    async def _begin_slot(
        self,
        python: str | None,
        binds: Sequence[Bind] = (),
        *,
        conceal: tuple[str, ...] = (),
        building: tuple[str, ...] = (),
    ) -> LocalSlot:
        """Start a fence with empty directories; `building`: the mounts of an asset's build."""
        path = await self._place("build" if building else "slot")
        found = await asyncio.to_thread(interpreter.prepare, python, self._cache)
        # Assets belong to one uid of builds, regardless of the uids of slots.
        uid = SLOT_UID if building else self._uids.take()
        memory_mb, max_pids = self.settings.memory_mb, self.settings.max_pids
        if building and memory_mb:
            memory_mb = max(memory_mb, BUILD_MEMORY_MB)
        groups = cgroups.create(f"hermes-queue-{path.name}", memory_mb=memory_mb, max_pids=max_pids)
        limits = cgroups.process_limits(groups, memory_mb=memory_mb, max_pids=max_pids)
        options = FenceOptions(
            interpreter=found,
            assets=tuple(binds),
            building=building,
            conceal=conceal,
            network=self.settings.network and not building,
            groups=groups,
            limits=limits,
            uid=uid,
        )
        fence = self._fence(path.name, SlotDirectories(path), options)

        async def begin() -> None:
            fence.directories.create(fenced=self.capabilities.isolation, owner=uid)
            await fence.begin()

        slot = LocalSlot(fence, path.with_suffix(".json"))
        await self._start(slot, begin)
        return slot

    async def _start(self, slot: LocalSlot, begin: Callable[[], Awaitable[None]]) -> None:
        fence, record = slot.fence, slot.record
        slot_id = fence.slot_id
        self._slots[slot_id] = slot
        try:
            await begin()
            pid, started = fence.init_pid, fence.init_started
            groups = fence.options.groups
            record_slot(record.parent, slot_id, pid=pid, started=started, groups=groups)
        except BaseException as error:
            await unbroken(self._end_slot(slot_id))
            if isinstance(error, OSError):
                raise SandboxError(f"a slot could not be made: {error}") from error
            raise
        if slot_id not in self._slots:
            raise SlotLost("the local backend was stopped")

    def _fence(
        self, slot_id: str, directories: SlotDirectories, options: FenceOptions
    ) -> BubblewrapFence | PlainFence:
        if not self.capabilities.isolation:
            return PlainFence(slot_id, directories, options, self._spawners, self._killer)
        assert self._tools is not None  # noqa: S101 - found by start()
        return BubblewrapFence(slot_id, self._tools, directories, options, self._spawners)

    # --- snapshots: `hermes_queue.sandbox.snapshots.KeepsSnapshots` -----------------------

    async def snapshot(self, slot: Slot, *, keep_s: float | None = None) -> Snapshot:
        """See `KeepsSnapshots`."""
        return await self._snapshots.take(self._leased_slot(slot), slot.trajectory_id)

    async def restore(self, slot: Slot, snapshot_id: str) -> None:
        """See `KeepsSnapshots`."""
        running = self._leased_slot(slot)
        await self._snapshots.restore(running, slot.trajectory_id, snapshot_id)

    async def snapshots(self) -> list[Snapshot]:
        """See `KeepsSnapshots`."""
        return await asyncio.to_thread(self._snapshots.found)

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """See `KeepsSnapshots`."""
        await asyncio.to_thread(self._snapshots.drop, snapshot_id)

    # --- the reaper's side ------------------------------------------------------------

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """See `SandboxBackend`."""
        found = await asyncio.to_thread(self._registry.sandboxes)
        return [info for info in found if labels.items() <= info.labels.items()]

    async def terminate(self, sandbox_id: str) -> None:
        """See `SandboxBackend`."""
        if self._sandbox is not None and self._sandbox.name == sandbox_id:
            await asyncio.gather(*(slot.fence.kill() for slot in self._slots.values()))
            self._sandbox = None
            self._observer.gone(sandbox_id)
        try:
            await asyncio.to_thread(self._registry.end, sandbox_id)
        except OSError as error:
            raise SandboxError(f"sandbox {sandbox_id} could not be removed: {error}") from error
