"""The Modal backend with slots that have an image, and a sandbox each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_plugins.images.modal.images import RootImages
from hermes_plugins.images.modal.slots import RootedLease, RootedSlots
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import NoSnapshot, SandboxRejected, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox import files
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import Capabilities, Listening, Slot, SlotSpec
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.image_slots import FileChange
from hermes_queue.sandbox.modal.backend import Held, ModalBackend
from hermes_queue.sandbox.modal.box import ModalSandbox
from hermes_queue.sandbox.profiles import DEFAULT_PROFILE
from hermes_queue.sandbox.snapshots import Snapshot
from hermes_queue.settings import ModalSettings

logger = logging.getLogger(__name__)


class RootedModalBackend(ModalBackend):
    """See `SandboxBackend`, `KeepsSnapshots` and `ImageSlots`."""

    def __init__(
        self,
        settings: ModalSettings | None = None,
        *,
        slots: int | None = None,
        labels: Mapping[str, str] | None = None,
        cache: Path | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        super().__init__(settings, slots=slots, labels=labels, cache=cache, fleet=fleet)
        images = RootImages(self._account, self._cache)
        self._rooted = RootedSlots(
            self._account, self._factory, images, self._observer, self._reader
        )

    @property
    def capabilities(self) -> Capabilities:
        """The current ones, see `ModalBackend`."""
        return replace(super().capabilities, images=True)

    async def _reader(self) -> ModalSandbox:
        return await self._readers.get(DEFAULT_PROFILE, self._profiles[DEFAULT_PROFILE])

    async def _stop(self) -> None:
        self._started = False
        for _ in range(await self._rooted.stop()):
            self._capacity.release()
        await super()._stop()

    async def _tend_once(self) -> None:
        await super()._tend_once()
        await self._rooted.tend()

    async def prepare(self, spec: SlotSpec) -> None:
        """See `SandboxBackend`."""
        if spec.image is None:
            return await super().prepare(spec)
        await super().prepare(replace(spec, image=None, python=None))  # its assets
        await self._rooted.prepare(spec)

    async def _lease(self, trajectory_id: str, spec: SlotSpec, *where: Any) -> Slot:
        if spec.image is None:
            return await super()._lease(trajectory_id, spec, *where)
        self._check_running()
        profile = self._profiles[spec.profile]
        assets = {each.mount: await self._assets.ensure(profile, each) for each in spec.assets}
        slot = await self._rooted.lease(trajectory_id, spec, profile, assets)
        return await self._checked(slot)

    async def _checked(self, slot: Slot) -> Slot:
        """A new slot, unless the backend was stopped meanwhile. Raises SlotLost."""
        if not self._started:
            if (lease := self._rooted.take_out(slot)) is not None:
                await unbroken(self._rooted.end(slot, lease))
            raise SlotLost("the modal backend was stopped")
        return slot

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        """See `SandboxBackend`. A slot with an image gets another sandbox."""
        spec = spec or slot.spec
        if slot not in self._rooted and spec.image is None:
            fresh = await super().renew(slot, spec)
            self._rooted.move_images(slot, fresh)
            return fresh
        if spec.image is not None:
            self._check_leased(slot)
            await self.prepare(spec)
        self._check_leased(slot)
        # Removed before the next await: a concurrent release finds nothing.
        leaving = self._leave(slot)
        try:
            await unbroken(leaving)
            fresh = await self._lease(slot.trajectory_id, spec)
        except BaseException:
            await unbroken(self._rooted.end_images(slot.slot_id))
            self._capacity.release()
            raise
        self._rooted.move_images(slot, fresh)
        return fresh

    def _check_leased(self, slot: Slot) -> None:
        if slot in self._rooted:
            self._rooted.leased(slot)
        else:
            self._leased_slot(slot)

    def _leave(self, slot: Slot) -> Coroutine[Any, Any, None]:
        """Take a slot out whose lease goes on; the coroutine ends it."""
        if (lease := self._rooted.take_out(slot)) is not None:
            return self._rooted.end(slot, lease)
        return self._vacate(slot, self._held.pop(slot.slot_id))

    async def _vacate(self, slot: Slot, held: Held) -> None:
        try:
            await self._close(slot.slot_id, held)
        finally:
            await held.pool.freed(held.box)

    async def release(self, slot: Slot) -> None:
        """See `SandboxBackend`."""
        if (lease := self._rooted.take_out(slot)) is not None:
            await unbroken(self._release_rooted(slot, lease))
        else:
            await super().release(slot)
            await unbroken(self._rooted.end_images(slot.slot_id))

    async def _release_rooted(self, slot: Slot, lease: RootedLease) -> None:
        try:
            await self._rooted.end(slot, lease)
            await self._rooted.end_images(slot.slot_id)
        finally:
            self._capacity.release()

    @contextlib.contextmanager
    def _in_slot(
        self, slot: Slot, *, whole: bool = False, user: str | None = None
    ) -> Iterator[files.RunInSlot]:
        if slot not in self._rooted:
            with super()._in_slot(slot, whole=whole, user=user) as run:
                yield run
            return
        box = self._rooted.leased(slot).box
        try:
            yield functools.partial(box.run, slot.slot_id, user=user)
        except SlotLost as error:
            if not box.spent:
                box.spent, box.why_spent = True, str(error)
            raise

    async def listen(self, slot: Slot, factory: Callable[[], asyncio.BaseProtocol]) -> Listening:
        """See `SandboxBackend`."""
        if slot in self._rooted:
            return await self._rooted.leased(slot).box.listen(slot.slot_id, factory)
        return await super().listen(slot, factory)

    async def terminate(self, sandbox_id: str) -> None:
        """See `SandboxBackend`."""
        self._rooted.lose(sandbox_id)
        await super().terminate(sandbox_id)

    # --- `KeepsSnapshots`, of slots without images ----------------------------------------

    async def snapshot(self, slot: Slot, *, keep_s: float | None = None) -> Snapshot:
        """See `KeepsSnapshots`."""
        if slot in self._rooted:
            raise NoSnapshot("slots with an image have none")
        return await super().snapshot(slot, keep_s=keep_s)

    # --- `hermes_queue.sandbox.image_slots.ImageSlots` -------------------------------------

    async def changes(self, slot: Slot) -> Sequence[FileChange]:
        """See `ImageSlots`."""
        self._check_image(slot)
        return await self._rooted.changes(slot)

    async def restart(self, slot: Slot) -> Slot:
        """See `ImageSlots`."""
        self._check_image(slot)
        self._rooted.leased(slot)
        try:
            return await self._checked(await self._rooted.restart(slot))
        except FilesRefused:  # the lease goes on
            raise
        except BaseException:
            self._capacity.release()
            raise

    async def commit(self, slot: Slot) -> ImageSpec:
        """See `ImageSlots`."""
        self._check_image(slot)
        return await self._rooted.commit(slot)

    def _check_image(self, slot: Slot) -> None:
        if slot.slot_id in self._held:
            raise SandboxRejected("the slot has no image of its own")
