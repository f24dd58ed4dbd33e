"""Leased slots of this host: their commands and files, what they become, and their end."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SlotLost
from hermes_queue.sandbox import files
from hermes_queue.sandbox.base import Listening, Slot, SlotSpec
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.host.spawner import Spawners
from hermes_queue.sandbox.local.fence import FenceOptions
from hermes_queue.sandbox.local.slot import LocalSlot
from hermes_queue.sandbox.local.uids import SlotUids
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
        self._uids = SlotUids(self._cache, settings.first_uid, settings.uids if fenced else 0)
        self._slots: dict[str, LocalSlot] = {}
        self._of_lease: dict[str, list[Callable[[], None]]] = {}
        """What ends with the lease of a slot, by its id."""

    @abstractmethod
    def _leased(self, running: LocalSlot, trajectory_id: str, spec: SlotSpec) -> Slot:
        """A slot that runs, as leased from now on."""

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

    # --- commands and files -----------------------------------------------------------

    @contextlib.contextmanager
    def _in_slot(
        self, slot: Slot, *, whole: bool = False, user: str | None = None
    ) -> Iterator[files.RunInSlot]:
        yield self._leased_slot(slot).run

    async def listen(self, slot: Slot, factory: Callable[[], asyncio.BaseProtocol]) -> Listening:
        """See `SandboxBackend`."""
        return await self._leased_slot(slot).listen(factory)

    def _leased_slot(self, slot: Slot) -> LocalSlot:
        if (found := self._slots.get(slot.slot_id)) is None:
            raise SlotLost(f"slot {slot.slot_id} is not leased")
        return found
