"""The slots with images of one Modal backend. Root is the agent's: each has its own sandbox."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from hermes_plugins.images.containers.box import SlotBox
from hermes_plugins.images.containers.host import ContainerSpec
from hermes_plugins.images.containers.plan import ContainerPlan
from hermes_plugins.images.containers.probes import Probes
from hermes_plugins.images.dockerfile.evaluation import DEFAULT_PATH
from hermes_plugins.images.modal import listing
from hermes_plugins.images.modal.host import RootedHost, RootedSandbox
from hermes_plugins.images.modal.images import RootImage, RootImages
from hermes_plugins.images.permission import check_resources
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxError, SandboxRejected, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.sandbox.fleet import SandboxObserver
from hermes_queue.sandbox.image_slots import FileChange, refuse_beside_image
from hermes_queue.sandbox.modal.account import ModalAccount
from hermes_queue.sandbox.modal.box import ModalSandbox
from hermes_queue.sandbox.modal.factory import BoxFactory
from hermes_queue.sandbox.modal.failures import explained
from hermes_queue.settings import ModalSettings, PriceSettings

logger = logging.getLogger(__name__)

COMMITTED = "committed-"
"""Begins the names of images made by `commit`."""
KEEP_TIMEOUT_S = 600
KEPT_S = 86_400
"""Modal deletes images of slots after this time if nobody has done so before."""
TOUCH_S = 60.0
LEAST_MEMORY_MB = 128
"""Of a sandbox."""

GetReader = Callable[[], Awaitable[ModalSandbox]]
"""A sandbox in which no agent has been."""


@dataclass(slots=True)
class RootedLease:
    """A leased slot."""

    box: SlotBox
    image: RootImage
    """What it is compared with."""
    profile: ModalSettings
    assets: Mapping[str, Any]
    """Path in the slot -> image of the asset there."""


class RootedSlots:
    """Belongs to one event loop."""

    def __init__(
        self,
        account: ModalAccount,
        factory: BoxFactory,
        images: RootImages,
        observer: SandboxObserver,
        reader: GetReader,
    ) -> None:
        self._account = account
        self._factory = factory
        self._images = images
        self._observer = observer
        self._reader = reader
        self._host = RootedHost()
        self._probes = Probes(self._host)
        self._prices = PriceSettings()
        self._leases: dict[str, RootedLease] = {}
        self._committed: dict[str, RootImage] = {}
        self._kept: dict[str, list[str]] = {}
        """Slot id -> images of its lease: names of committed ones, ids of others."""

    def __contains__(self, slot: Slot) -> bool:
        return slot.slot_id in self._leases

    def leased(self, slot: Slot) -> RootedLease:
        """A leased slot that lives. Raises SlotLost."""
        if (found := self._leases.get(slot.slot_id)) is None:
            raise SlotLost(f"slot {slot.slot_id} is not leased")
        found.box.check(slot.slot_id)
        return found

    async def prepare(self, spec: SlotSpec) -> RootImage:
        """The image of a task. Raises as `RootImages.ensure`, SandboxRejected: it wants more."""
        assert spec.image is not None  # noqa: S101 - the caller's choice
        refuse_beside_image(spec, conceals=True)
        check_resources(
            self._images.settings,
            cpus=spec.cpus,
            memory_mb=spec.memory_mb,
            disk_mb=spec.disk_mb,
            network=spec.network,
        )
        reference = spec.image.reference or ""
        if reference.startswith(COMMITTED):
            if (found := self._committed.get(reference)) is None:
                raise SandboxRejected(f"the image {reference} ended with the lease of its slot")
            return found
        return await self._images.ensure(spec.image)

    async def lease(
        self,
        trajectory_id: str,
        spec: SlotSpec,
        profile: ModalSettings,
        assets: Mapping[str, Any],
    ) -> Slot:
        """A new slot. Raises as `prepare` and `BoxFactory.make`."""
        image = await self.prepare(spec)
        wanted = _profile(profile, spec, image)
        plan = _plan(wanted, spec, image)
        box = await self._start(image.image, plan, wanted, assets)
        try:
            await self._probes.check(box.container, plan)
            if spec.conceal:
                await self._probes.conceal(box.container, plan, spec.conceal)
        except BaseException:
            await unbroken(self._end(box))
            raise
        return self._begin(RootedLease(box, image, wanted, assets), trajectory_id, spec)

    async def _start(
        self, image: Any, plan: ContainerPlan, profile: ModalSettings, assets: Mapping[str, Any]
    ) -> SlotBox:
        sandbox = await self._factory.bare(profile, image)
        kib = plan.spec.memory_mb << 10 if profile.slot_memory_mb else 0
        names = f" {' '.join(profile.env)} "
        found = RootedSandbox(sandbox, profile.lifetime_s, names, kib)
        self._host.sandboxes[sandbox.object_id] = found
        box = SlotBox(self._host, sandbox.object_id, plan)
        try:
            for place, asset in assets.items():
                with explained(f"mounting an asset at {place}", gone=True):
                    await sandbox.mount_image.aio(place, asset)
        except BaseException:
            await unbroken(self._end(box))
            raise
        return box

    def _begin(self, lease: RootedLease, trajectory_id: str, spec: SlotSpec) -> Slot:
        profile = lease.profile
        usd_per_s = self._prices.modal_usd_per_s(
            cpu=profile.cpu, memory_mb=profile.memory_mb, gpu=profile.gpu
        )
        slot = replace(lease.box.slot(trajectory_id, spec), usd_per_s=usd_per_s)
        self._leases[slot.slot_id] = lease
        self._observer.leased(slot)
        return slot

    def take_out(self, slot: Slot) -> RootedLease | None:
        """A leased slot, which is not from now on: whoever has it ends it. None: it has ended."""
        if (found := self._leases.pop(slot.slot_id, None)) is not None:
            self._observer.released(slot.slot_id)
        return found

    async def end(self, slot: Slot, lease: RootedLease) -> None:
        """End a slot that was taken out, though not the images of its lease. Never raises."""
        await self._end(lease.box, slot.slot_id)

    async def _end(self, box: SlotBox, slot_id: str = "") -> None:
        box.slot_id, box.spent = "", True
        await box.end_ports(stop=False, slot_id=slot_id)
        self._host.sandboxes.pop(box.container, None)
        await self._factory.end_id(box.container)
        self._observer.gone(box.container)

    async def stop(self) -> int:
        """End all slots; returns how many there were. Never raises."""
        leases, self._leases = self._leases, {}
        for slot_id in leases:
            self._observer.released(slot_id)
        await asyncio.gather(*(self._end(each.box, name) for name, each in leases.items()))
        for slot_id in list(self._kept):
            await self.end_images(slot_id)
        return len(leases)

    def lose(self, sandbox_id: str) -> None:
        """A sandbox was ended by somebody else."""
        for found in self._leases.values():
            if found.box.container == sandbox_id:
                found.box.spent, found.box.why_spent = True, "its sandbox was ended"

    async def tend(self) -> None:
        """Send signs of life."""
        for found in list(self._leases.values()):
            sandbox = self._host.sandboxes.get(found.box.container)
            if sandbox is None or time.monotonic() - sandbox.touched < TOUCH_S:
                continue
            sandbox.touched = time.monotonic()
            try:
                await self._host.state(found.box.container)
            except SlotLost as error:
                found.box.spent, found.box.why_spent = True, str(error)
            except SandboxError as error:
                logger.warning("lost a sandbox? %s", error, extra={"action": "sandbox_lost"})

    # --- images of leases -------------------------------------------------------------

    def move_images(self, old: Slot, new: Slot) -> None:
        """The lease of `old` goes on under `new`."""
        if (kept := self._kept.pop(old.slot_id, None)) is not None:
            self._kept[new.slot_id] = kept

    async def end_images(self, slot_id: str) -> None:
        """Delete the images of a lease that has ended. Never raises."""
        for name in self._kept.pop(slot_id, ()):
            image = self._committed.pop(name, None)
            await self._delete(image.image_id if image else name)

    async def _delete(self, image_id: str) -> None:
        try:
            await self._account.delete_snapshot(image_id)
        except SandboxError as error:
            extra = {"action": "image_left"}
            message = "image %s stays until Modal deletes it: %s"
            logger.info(message, image_id, error, extra=extra)

    async def _snapshot(self, lease: RootedLease) -> Any:
        """The slot's files as an image at Modal.

        Raises:
            FilesRefused: not in time, though the sandbox answers.
            SandboxError: Modal failed.
        """
        sandbox = self._host.sandboxes.get(lease.box.container)
        if sandbox is None:
            raise SlotLost("the slot has ended")
        keep = sandbox.sandbox.snapshot_filesystem.aio
        with explained("keeping a slot's files", gone=True):
            try:
                async with asyncio.timeout(KEEP_TIMEOUT_S):
                    return await keep(timeout=KEEP_TIMEOUT_S + 60, ttl=KEPT_S)
            except TimeoutError as error:
                await self._host.state(lease.box.container)
                why = f"the slot's files were not kept in {KEEP_TIMEOUT_S} s"
                raise FilesRefused(why) from error

    # --- `hermes_queue.sandbox.image_slots.ImageSlots` -------------------------------------

    async def changes(self, slot: Slot) -> list[FileChange]:
        """See `ImageSlots`."""
        lease = self.leased(slot)
        snapshot = await self._snapshot(lease)
        try:
            reader = await self._reader()
            try:
                found = await listing.changes(reader, lease.image, snapshot)
            except SlotLost as error:  # the reader's loss, not the slot's
                reader.spent = True
                raise SandboxError(str(error)) from error
        finally:
            await unbroken(self._delete(str(snapshot.object_id)))
        return _without_mounts(found, lease.assets)

    async def restart(self, slot: Slot) -> Slot:
        """See `ImageSlots`: another sandbox with the slot's files."""
        lease = self.leased(slot)
        del self._leases[slot.slot_id]  # before the first await: a release finds nothing
        lease.box.slot_id = ""
        self._observer.released(slot.slot_id)
        try:
            snapshot = await self._snapshot(lease)
            self._kept.setdefault(slot.slot_id, []).append(str(snapshot.object_id))
            await unbroken(self._end(lease.box, slot.slot_id))
            box = await self._start(snapshot, lease.box.plan, lease.profile, lease.assets)
        except FilesRefused:  # the lease goes on: whoever renews it gets a fresh sandbox
            self._leases[slot.slot_id], lease.box.slot_id = lease, slot.slot_id
            self._observer.leased(slot)
            raise
        except BaseException:
            if not lease.box.spent:
                await unbroken(self._end(lease.box, slot.slot_id))
            await unbroken(self.end_images(slot.slot_id))
            raise
        fresh = self._begin(replace(lease, box=box), slot.trajectory_id, slot.spec)
        self.move_images(slot, fresh)
        return fresh

    async def commit(self, slot: Slot) -> ImageSpec:
        """See `ImageSlots`."""
        lease = self.leased(slot)
        snapshot = await self._snapshot(lease)
        if slot.slot_id not in self._leases:
            await unbroken(self._delete(str(snapshot.object_id)))
            raise SlotLost(f"slot {slot.slot_id} was released")
        name = f"{COMMITTED}{secrets.token_hex(12)}"
        description = f"{lease.image.description}, changed in a slot"
        self._committed[name] = RootImage(snapshot, lease.image.config, description)
        self._kept.setdefault(slot.slot_id, []).append(name)
        return ImageSpec(reference=name)


def _without_mounts(found: list[FileChange], places: Iterable[str]) -> list[FileChange]:
    """The changes without mount points, and without new folders that hold nothing else."""
    if not places:
        return found
    above = {folder for place in places for folder in map(str, PurePosixPath(place).parents)}
    inside = tuple(f"{place}/" for place in places)
    kept = [each for each in found if not f"{each.path}/".startswith(inside)]
    others = [each.path for each in kept if each.path not in above]
    empty = {folder for folder in above if not any(e.startswith(f"{folder}/") for e in others)}
    return [each for each in kept if each.kind != "added" or each.path not in empty]


def _profile(profile: ModalSettings, spec: SlotSpec, image: RootImage) -> ModalSettings:
    """The sandbox for one slot with an image. The profile's secrets and volumes are not for it."""
    cpu = spec.cpus or profile.cpu
    memory_mb = max(spec.memory_mb or profile.memory_mb, LEAST_MEMORY_MB)
    open_ = spec.network == "open"
    return profile.model_copy(
        update={
            "cpu": cpu,
            "cpu_limit": cpu,
            "memory_mb": memory_mb,
            "memory_limit_mb": memory_mb,
            "env": {"PATH": DEFAULT_PATH, **image.config.env, **dict(spec.env)},
            "secrets": (),
            "volumes": {},
            "network": "open" if open_ else "blocked",
            "allow_domains": (),
            "allow_cidrs": (),
            "slots_per_sandbox": 1,
            "min_sandboxes": 0,
        }
    )


def _plan(profile: ModalSettings, spec: SlotSpec, image: RootImage) -> ContainerPlan:
    container = ContainerSpec(
        image=image.image_id,
        command=(),
        labels={},
        cpus=profile.cpu,
        memory_mb=spec.memory_mb or profile.memory_mb,
        pids=0,
        shm_mb=0,
        network=spec.network,
        env=spec.env,
    )
    user = spec.user or image.config.user or "0"
    workdir = posixpath.normpath(spec.workdir or image.config.workdir or "/")
    return ContainerPlan(spec, image.description, container, user, image.config, workdir)
