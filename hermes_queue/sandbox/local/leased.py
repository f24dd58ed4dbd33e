"""Leased slots of this host: their commands and files, what they become, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxRejected, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox import files
from hermes_queue.sandbox.base import MAX_FILE_BYTES, Listening, Slot, SlotSpec
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.host.spawner import Spawners
from hermes_queue.sandbox.image_slots import FileChange
from hermes_queue.sandbox.local.fence import FenceOptions
from hermes_queue.sandbox.local.slot import LocalSlot
from hermes_queue.sandbox.local.uids import SlotUids
from hermes_queue.sandbox.rootfs.fence import Bind
from hermes_queue.sandbox.rootfs.slot import HeldImage, RootfsSlot
from hermes_queue.sandbox.rootfs.slots import RootfsSlots
from hermes_queue.sandbox.slot_backend import SlotBackend
from hermes_queue.settings import LocalSandboxSettings


class LeasedSlots(SlotBackend):
    """The part of `LocalBackend` that concerns slots which run."""

    def __init__(
        self,
        slots: int,
        labels: Mapping[str, str] | None,
        cache: Path | None,
        fleet: Fleet | None,
        settings: LocalSandboxSettings,
    ) -> None:
        super().__init__(slots, labels, cache, fleet)
        self.settings = settings
        fenced = settings.isolation == "bwrap"
        self._spawners = Spawners(confined=fenced)
        self._rootfs = RootfsSlots(self._cache, settings, self._spawners)
        self._uids = SlotUids(self._cache, settings.first_uid, settings.uids if fenced else 0)
        self._slots: dict[str, LocalSlot] = {}
        self._of_lease: dict[str, list[Callable[[], None]]] = {}
        """What ends with the lease of a slot, by its id."""

    @abstractmethod
    def _leased(self, running: LocalSlot, trajectory_id: str, spec: SlotSpec) -> Slot:
        """A slot that runs, as leased from now on."""

    @abstractmethod
    async def _begin_rootfs(
        self, spec: SlotSpec, image: HeldImage, binds: Sequence[Bind], upper: Path | None = None
    ) -> RootfsSlot:
        """Start a slot with the files of an image, and those of `upper` over them."""

    async def _end_slot(self, slot_id: str) -> None:
        """Kill and delete a slot, and end its lease. No-op if it is gone; never raises."""
        if (slot := self._slots.pop(slot_id, None)) is not None:
            await self._finish(slot)
            self._end_lease(self._of_lease.pop(slot_id, []))
            if slot.has_capacity:
                self._capacity.release()

    def _end_lease(self, ends: Sequence[Callable[[], None]]) -> None:
        for end in ends:
            end()

    async def _finish(self, slot: LocalSlot) -> None:
        if await slot.end() and isinstance(slot.fence.options, FenceOptions):
            self._uids.give_back(slot.fence.options.uid)

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        """See `SandboxBackend`."""
        self._leased_slot(slot)
        if spec is not None:
            await self.prepare(spec)

        async def again(running: LocalSlot) -> Slot:
            await unbroken(self._finish(running))
            return await self._lease(slot.trajectory_id, spec or slot.spec)

        return await self._continue(slot, again)

    async def _continue(self, slot: Slot, again: Callable[[LocalSlot], Awaitable[Slot]]) -> Slot:
        """Replace a slot, and keep its lease unless that fails."""
        running = self._leased_slot(slot)
        # Removed before the first await: a concurrent release finds nothing. Otherwise both would
        # end the slot and release its capacity.
        del self._slots[slot.slot_id]
        ends = self._of_lease.pop(slot.slot_id, [])
        try:
            fresh = await again(running)
        except BaseException:
            self._end_lease(ends)
            self._capacity.release()
            raise
        self._of_lease[fresh.slot_id] = ends
        return fresh

    async def release(self, slot: Slot) -> None:
        """See `SandboxBackend`."""
        await unbroken(self._end_slot(slot.slot_id))

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

    async def listen(self, slot: Slot, factory: Callable[[], asyncio.BaseProtocol]) -> Listening:
        """See `SandboxBackend`."""
        return await self._leased_slot(slot).listen(factory)

    def _leased_slot(self, slot: Slot) -> LocalSlot:
        if (found := self._slots.get(slot.slot_id)) is None:
            raise SlotLost(f"slot {slot.slot_id} is not leased")
        return found
