"""The local backend with slots that have an image of their own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hermes_plugins.images.rootfs.slot import HeldImage, RootfsSlot
from hermes_plugins.images.rootfs.slots import RootfsSlots, can_have_images, describe
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import NoSnapshot, SandboxRejected, SlotLost
from hermes_queue.images.spec import ImageConfig, ImageSpec
from hermes_queue.sandbox import files
from hermes_queue.sandbox.base import MAX_FILE_BYTES, Slot, SlotSpec
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.image_slots import FileChange
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.sandbox.local.fence import Bind
from hermes_queue.sandbox.local.registry import HostRegistry
from hermes_queue.sandbox.local.slot import LocalSlot
from hermes_queue.sandbox.profiles import refuse_images
from hermes_queue.sandbox.snapshots import Snapshot
from hermes_queue.settings import LocalSandboxSettings


class RootfsLocalBackend(LocalBackend):
    """See `LocalBackend` and `ImageSlots`."""

    def __init__(
        self,
        settings: LocalSandboxSettings | None = None,
        *,
        slots: int | None = None,
        labels: Mapping[str, str] | None = None,
        cache: Path | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        super().__init__(settings, slots=slots, labels=labels, cache=cache, fleet=fleet)
        # Without isolation, a slot's paths are those of no other slot.
        images = self.capabilities.isolation and can_have_images()
        self.capabilities = replace(self.capabilities, images=images)
        self._rootfs = RootfsSlots(self._cache, self.settings, self._spawners)
        self._registry = HostRegistry(self._cache, remove=self._rootfs.host.remove)

    async def _close(self) -> None:
        await super()._close()
        await self._rootfs.close()

    async def _prepare_root(self, spec: SlotSpec) -> None:
        if spec.image is None:
            return await super()._prepare_root(spec)
        if not self.capabilities.isolation:
            refuse_images("local", spec)
        await self._rootfs.check(spec)
        (await self._rootfs.hold(spec.image)).release()

    async def _begin(
        self, spec: SlotSpec, binds: Sequence[Bind], pins: contextlib.ExitStack
    ) -> LocalSlot:
        if spec.image is None:
            return await super()._begin(spec, binds, pins)
        image = await self._rootfs.hold(spec.image)
        pins.callback(image.release)
        return await self._begin_rootfs(spec, image, binds)

    async def _begin_rootfs(
        self, spec: SlotSpec, image: HeldImage, binds: Sequence[Bind], upper: Path | None = None
    ) -> RootfsSlot:
        """Start a slot with the files of an image, and those of `upper` over them."""
        slot = self._rootfs.new(await self._place("slot"), spec, image, binds)
        user = image.rootfs.config.user if spec.user is None else spec.user
        await self._start(slot, lambda: self._rootfs.begin(slot, user, upper))
        return slot

    def _root_of(self, running: LocalSlot, spec: SlotSpec) -> tuple[str, ImageConfig | None]:
        if not isinstance(running, RootfsSlot):
            return super()._root_of(running, spec)
        rootfs = running.image.rootfs
        return describe(rootfs), rootfs.config

    async def snapshot(self, slot: Slot, *, keep_s: float | None = None) -> Snapshot:
        """See `KeepsSnapshots`."""
        if isinstance(self._leased_slot(slot), RootfsSlot):
            raise NoSnapshot("slots with an image have none")
        return await super().snapshot(slot, keep_s=keep_s)

    # --- slots with an image: `hermes_queue.sandbox.image_slots.ImageSlots` ----------------

    async def changes(self, slot: Slot) -> Sequence[FileChange]:
        """See `ImageSlots`."""
        return await self._rootfs.changes(self._with_image(slot))

    async def restart(self, slot: Slot) -> Slot:
        """See `ImageSlots`."""
        self._with_image(slot)

        async def again(running: LocalSlot) -> Slot:
            assert isinstance(running, RootfsSlot)  # noqa: S101 - checked above
            with contextlib.ExitStack() as pins:
                # The new slot has the assets and the image of the old one.
                pins.callback(running.on_end)
                running.on_end = lambda: None
                upper = running.keep_files()
                await unbroken(self._finish(running))
                pins.callback(self._rootfs.forget, upper)
                binds = running.fence.options.binds
                fresh = await self._begin_rootfs(slot.spec, running.image, binds, upper)
                fresh.on_end = pins.pop_all().close
            return self._leased(fresh, slot.trajectory_id, slot.spec)

        return await self._continue(slot, again)

    async def commit(self, slot: Slot) -> ImageSpec:
        """See `ImageSlots`."""
        image, end = await self._rootfs.commit(self._with_image(slot))
        if slot.slot_id not in self._slots:
            end()
            raise SlotLost(f"slot {slot.slot_id} was released")
        self._of_lease.setdefault(slot.slot_id, []).append(end)
        return image

    def _with_image(self, slot: Slot) -> RootfsSlot:
        running = self._leased_slot(slot)
        if not isinstance(running, RootfsSlot):
            raise SandboxRejected("the slot has no image of its own")
        return running

    # --- commands and files -----------------------------------------------------------

    @contextlib.contextmanager
    def _in_slot(
        self, slot: Slot, *, whole: bool = False, user: str | None = None
    ) -> Iterator[files.RunInSlot]:
        running = self._leased_slot(slot)
        if isinstance(running, RootfsSlot) and user is not None:
            yield functools.partial(running.run_as, user)
        else:
            yield running.run

    async def read_file(self, slot: Slot, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """See `SandboxBackend`."""
        running = self._leased_slot(slot)
        if isinstance(running, RootfsSlot):
            return await running.read_file(path, max_bytes=max_bytes)
        return await super().read_file(slot, path, max_bytes=max_bytes)

    async def write_file(self, slot: Slot, path: str, data: bytes) -> None:
        """See `SandboxBackend`."""
        running = self._leased_slot(slot)
        if isinstance(running, RootfsSlot):
            return await running.write_file(path, data)
        return await super().write_file(slot, path, data)
