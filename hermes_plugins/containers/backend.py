"""The backend over a host of containers: one container per slot."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_plugins.containers.assets import ContainerAssets
from hermes_plugins.containers.box import ContainerBox
from hermes_plugins.containers.host import ContainerHost, ContainerOptions, HostImages
from hermes_plugins.containers.leftovers import Leftovers
from hermes_plugins.containers.planner import Planner
from hermes_plugins.containers.services.groups import ServiceGroups
from hermes_plugins.containers.services.networks import ContainerNetworks
from hermes_plugins.containers.stock import Stock
from hermes_plugins.images.containers.host import ContainerSpec
from hermes_plugins.images.containers.plan import ContainerPlan
from hermes_plugins.images.containers.probes import Probes
from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxError, SandboxRejected, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox import files
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import (
    MAX_FILE_BYTES,
    AssetSpec,
    Capabilities,
    Listening,
    SandboxInfo,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.image_slots import MAX_CHANGES, FileChange
from hermes_queue.sandbox.profiles import refuse_but_default
from hermes_queue.sandbox.slot_backend import SlotBackend
from hermes_queue.settings import WorkerSettings

logger = logging.getLogger(__name__)

GIVE_UP_S = 20.0
"""For an engine that is away while the backend stops; the next worker removes what is left."""
MEASURE_S = 30.0
TRAJECTORY = "trajectory"
"""Label of a container that was made for one."""


class ContainerBackend(SlotBackend):
    """See `SandboxBackend` and `ImageSlots`."""

    def __init__(
        self,
        host: ContainerHost,
        images: HostImages,
        settings: ContainerOptions,
        *,
        slots: int | None = None,
        labels: Mapping[str, str] | None = None,
        cache: Path | None = None,
        fleet: Fleet | None = None,
        networks: ContainerNetworks | None = None,
    ) -> None:
        super().__init__(slots or WorkerSettings().concurrency, labels, cache, fleet)
        self.settings = settings
        self._host = host
        self._leftovers = Leftovers(self._cache)
        self._stock = Stock(host, self._make, self._observer, starting=settings.max_starting)
        self._assets = ContainerAssets(
            self._cache, settings, host, lambda plan: self._stock.new(plan, {}), self._stock.drop
        )
        self._probes = Probes(host)
        self._planner = Planner(settings, host, images, self._assets, self._probes, self._stock)
        self._groups = ServiceGroups(host, networks, self._stock, self._create, settings)
        self._held: dict[str, ContainerBox] = {}
        self._ending: set[asyncio.Future[None]] = set()
        self._tender: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """See `SandboxBackend`. An engine of this machine is looked after by its own workers."""
        return self._host.facts.capabilities(services=self._groups.are_possible)

    @property
    def _own_labels(self) -> Mapping[str, str]:
        """Of everything that this worker makes."""
        return {**self.labels, **self._leftovers.labels}

    # --- life cycle -------------------------------------------------------------------

    async def start(self) -> None:
        """See `SandboxBackend`. Also removes what dead workers of this host left."""
        async with self._opening:
            if self._started:
                return
            await self._host.open()
            try:
                await asyncio.to_thread(self._leftovers.open)
                await self._leftovers.reclaim(self._host, self._groups.networks)
            except BaseException:
                self._leftovers.close()
                await unbroken(self._host.close())
                raise
            self._started = self._stock.is_open = True
            self._tender = asyncio.create_task(self._tend())

    async def stop(self) -> None:
        """See `SandboxBackend`."""
        await unbroken(self._stop())

    async def _stop(self) -> None:
        self._started = False
        if self._tender is not None:
            await end_tasks(self._tender)
            self._tender = None
        ended = []
        while self._held:
            slot_id, box = self._held.popitem()
            self._observer.released(slot_id)
            self._capacity.release()
            ended.append(self._end(box))
        await asyncio.gather(*ended, *self._ending)
        await self._stock.close(GIVE_UP_S)
        await self._host.close()
        self._leftovers.close()

    async def _tend(self) -> None:
        """Remove what is left, and look at how much slots have written."""
        rounds = 0
        while True:
            await asyncio.sleep(min(self.settings.reap_s, MEASURE_S))
            rounds += 1
            try:
                await self._stock.tend()
                await self._groups.tend()
                await self._measure()
                if rounds * MEASURE_S >= self.settings.reap_s:
                    rounds = 0
                    await self._leftovers.reclaim(self._host, self._groups.networks)
            except (SandboxError, OSError) as error:  # the next round tries again
                extra = {"action": "tend_failed"}
                logger.warning("cannot look after containers: %s", error, extra=extra)

    async def _measure(self) -> None:
        """Give up slots that have written more than they may, in one of their containers."""
        if not any(any(box.bounds_mb().values()) for box in self._held.values()):
            return
        written = await self._host.written(self._leftovers.labels)
        for slot_id, box in list(self._held.items()):
            for container, most_mb in box.bounds_mb().items():
                if most_mb and written.get(container, 0) > most_mb << 20:
                    box.ended_itself = True
                    box.why_spent = f"it wrote more than {most_mb} MB to its root file system"
                    extra = {"action": "slot_lost"}
                    logger.warning("slot %s: %s", slot_id, box.why_spent, extra=extra)
                    await self._stock.drop(box)
                    break

    def _check_running(self) -> None:
        if not self._started:
            raise SandboxError("the backend is not running")

    # --- preparation ------------------------------------------------------------------

    async def prepare(self, spec: SlotSpec) -> None:
        """See `SandboxBackend`."""
        await self._plan(spec)

    async def read_asset(
        self, asset: AssetSpec, path: str, *, max_bytes: int = MAX_FILE_BYTES
    ) -> bytes:
        """See `SandboxBackend`."""
        self._check_running()
        image = await self._planner.own_image()
        return await self._assets.read(image, asset, path, max_bytes=max_bytes)

    async def _plan(self, spec: SlotSpec) -> ContainerPlan:
        refuse_but_default(spec.profile)
        self._check_running()
        return await self._planner.plan(spec)

    async def _make(self, plan: ContainerPlan, labels: Mapping[str, str]) -> str:
        """A container of this plan, known to the ledger and with all that a slot needs."""
        container = await self._create(plan.spec, labels)
        try:
            await self._probes.check(container, plan)
        except BaseException:
            await unbroken(self._stock.end(container))
            raise
        return container

    async def _create(self, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
        """A container that is known to the ledger."""
        every = {**self._own_labels, **labels}
        name = f"hermes-queue-{uuid.uuid4().hex}"
        spec = dataclasses.replace(spec, labels=every, name=name)
        try:
            container = await self._host.create(spec)
        except SandboxRejected:
            raise
        except BaseException:
            # The engine may have made it, and died before it could tell.
            await unbroken(self._stock.remove(name))
            raise
        try:
            await self._observer.created(container, self.labels)
        except BaseException:
            await unbroken(self._stock.end(container))
            raise
        return container

    # --- slots ------------------------------------------------------------------------

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        """See `SandboxBackend`. While it waits, its container may be made in advance."""
        plan = await self._plan(spec)
        makes = self.settings.warm and not self._capacity.free and not plan.services
        with self._stock.waiting(plan, makes=makes):
            await self._capacity.acquire()
        try:
            return await self._lease(trajectory_id, spec, plan)
        except BaseException:
            self._capacity.release()
            raise

    async def _lease(
        self, trajectory_id: str, spec: SlotSpec, plan: ContainerPlan | None = None
    ) -> Slot:
        plan = plan or await self._plan(spec)
        self._check_running()
        labels = {TRAJECTORY: trajectory_id}
        box = await self._groups.take(plan, labels, self._own_labels)
        try:
            if spec.conceal:
                await self._probes.conceal(box.container, plan, spec.conceal)
            self._check_running()
        except BaseException:
            await unbroken(self._groups.end(box))
            raise
        return self._begin(box, trajectory_id, spec)

    def _begin(self, box: ContainerBox, trajectory_id: str, spec: SlotSpec) -> Slot:
        slot = box.slot(trajectory_id, spec)
        self._held[slot.slot_id] = box
        self._observer.leased(slot)
        return slot

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        """See `SandboxBackend`: another container."""
        box, spec = self._leased(slot), spec or slot.spec
        # Removed before the first await: a concurrent release finds nothing.
        self._held.pop(slot.slot_id)
        self._observer.released(slot.slot_id)
        try:
            lease = asyncio.ensure_future(self._lease(slot.trajectory_id, spec))
            try:
                renewed = await asyncio.shield(lease)
            except asyncio.CancelledError:
                lease.add_done_callback(self._release_late)
                raise
            finally:  # not before: Podman makes no container while it deletes another one's files
                await unbroken(self._end(box, keep_commits=True))
        except BaseException:
            await unbroken(self._planner.drop_commits(box))
            self._capacity.release()
            raise
        self._held[renewed.slot_id].commits = box.commits
        return renewed

    def _release_late(self, lease: asyncio.Future[Slot]) -> None:
        """Remove a slot that nobody waits for any more; its place was given back already."""
        if not lease.cancelled() and lease.exception() is None:
            box = self._held.pop(lease.result().slot_id, None)
            self._observer.released(lease.result().slot_id)
            if box is not None:
                task = asyncio.ensure_future(self._end(box))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def release(self, slot: Slot) -> None:
        """See `SandboxBackend`."""
        if (box := self._held.pop(slot.slot_id, None)) is not None:
            await unbroken(self._release(slot.slot_id, box))

    async def _release(self, slot_id: str, box: ContainerBox) -> None:
        try:
            await self._end(box)
        finally:
            self._observer.released(slot_id)
            self._capacity.release()

    async def _end(self, box: ContainerBox, *, keep_commits: bool = False) -> None:
        """End a lease and its container. Never raises."""
        slot_id, box.slot_id = box.slot_id, ""
        was_spent, box.spent = box.spent, True
        if box.listening:
            await box.end_ports(stop=False, slot_id=slot_id)
        await self._groups.end(box, was_spent=was_spent)
        if not keep_commits:
            await self._planner.drop_commits(box)

    def _leased(self, slot: Slot) -> ContainerBox:
        if (box := self._held.get(slot.slot_id) or self._groups.box(slot.slot_id)) is not None:
            box.check(slot.slot_id)
            return box
        raise SlotLost(f"slot {slot.slot_id} is not leased")

    # --- commands ---------------------------------------------------------------------

    @contextlib.contextmanager
    def _in_slot(
        self, slot: Slot, *, whole: bool = False, user: str | None = None
    ) -> Iterator[files.RunInSlot]:
        yield functools.partial(self._leased(slot).run, slot.slot_id, user=user)

    async def listen(self, slot: Slot, factory: Callable[[], asyncio.BaseProtocol]) -> Listening:
        """See `SandboxBackend`."""
        return await self._leased(slot).listen(slot.slot_id, factory)

    # --- images of slots --------------------------------------------------------------

    async def changes(self, slot: Slot) -> Sequence[FileChange]:
        """See `ImageSlots`."""
        return await self._host.changes(self._leased(slot).container, MAX_CHANGES)

    async def restart(self, slot: Slot) -> Slot:
        """See `ImageSlots`."""
        box = self._leased(slot)
        self._held.pop(slot.slot_id)
        box.slot_id = ""  # commands that are running are lost, and none begins
        self._observer.released(slot.slot_id)
        try:
            await box.end_ports(stop=False, slot_id=slot.slot_id)
            await unbroken(self._host.restart(box.container))
            await self._groups.restart(box)
        except FilesRefused:  # the lease goes on: whoever renews it gets a fresh container
            self._held[slot.slot_id], box.slot_id = box, slot.slot_id
            self._observer.leased(slot)
            raise
        except BaseException:
            await unbroken(self._end(box))
            self._capacity.release()
            raise
        return self._begin(box, slot.trajectory_id, slot.spec)

    async def service(self, slot: Slot, name: str) -> Slot:
        """See `ServiceSlots`."""
        return await self._groups.slot(slot, self._leased(slot), name)

    async def commit(self, slot: Slot) -> ImageSpec:
        """See `ImageSlots`."""
        return await self._planner.commit(self._leased(slot), self._own_labels)

    # --- the reaper's side ------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        """The host, also before the start and after the end of this backend."""
        await self._host.open()
        try:
            yield
        finally:
            if not self._started:
                await self._host.close()

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """See `SandboxBackend`."""
        async with self._opened():
            return await self._host.list(labels)

    async def terminate(self, sandbox_id: str) -> None:
        """See `SandboxBackend`."""
        async with self._opened():
            for slot_id, box in list(self._held.items()):
                if box.container == sandbox_id:
                    box.spent, box.why_spent = True, "its container was ended"
                    await box.end_ports(stop=False, slot_id=slot_id)
            await self._groups.remove_sandbox(sandbox_id)
        self._observer.gone(sandbox_id)


if TYPE_CHECKING:
    from hermes_queue.sandbox.base import SandboxBackend
    from hermes_queue.sandbox.image_slots import ImageSlots
    from hermes_queue.sandbox.services import ServiceSlots

    _service_slots: type[ServiceSlots] = ContainerBackend
    _backend: type[SandboxBackend] = ContainerBackend
    _image_slots: type[ImageSlots] = ContainerBackend
