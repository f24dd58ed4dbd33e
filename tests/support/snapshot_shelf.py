"""A host in memory: slots with one file, copies of it, and a command at which its worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from hermes_queue.errors import NoSnapshot, SandboxError
from hermes_queue.sandbox.base import (
    Capabilities,
    ExecutionRequest,
    ExecutionResult,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.snapshots import Snapshot


class Died(BaseException):
    """The worker is gone."""


class Shelf:
    """A host: slots with one file, copies of it, and workers that die at a command of their own."""

    capabilities = Capabilities(isolation=True, snapshot=True)

    def __init__(self) -> None:
        self.files: dict[str, list[str]] = {}
        self.kept: dict[str, tuple[str, list[str]]] = {}
        self.dies_at = ""
        self.breaks_at = ""
        self.hangs_at = ""
        self.hung = asyncio.Event()
        self.refuses = ""
        """Why there can be no copy."""
        self.never_answers = False
        self.drops_none = False
        """Whether whoever asks for a copy, or for the end of one, waits for ever."""
        self.never_restores = False
        self.has_no_room = False
        """Whether no copy can be restored now."""
        self.count = 0

    async def prepare(self, spec: SlotSpec) -> None: ...

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        self.count += 1
        slot = Slot(f"s{self.count}", trajectory_id, "box", "/workspace", spec)
        self.files[slot.slot_id] = []
        return slot

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        return await self.acquire(slot.trajectory_id, slot.spec)

    async def release(self, slot: Slot) -> None:
        self.files.pop(slot.slot_id, None)

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        await asyncio.sleep(0)  # so that a limit that has passed is noticed
        if any(self.breaks_at and self.breaks_at in each.command for each in requests):
            return [SandboxError("the box is gone") for _ in requests]
        if any(self.hangs_at and self.hangs_at in each.command for each in requests):
            self.hung.set()
            await asyncio.Event().wait()
        return [self._run(each) for each in requests]

    def _run(self, request: ExecutionRequest) -> ExecutionResult:
        lines = self.files[request.slot.slot_id]
        if self.dies_at and self.dies_at in request.command:
            raise Died
        if request.command.startswith("echo "):
            lines.append(request.command.split()[1])
        text = "\n".join(lines) if request.command == "cat log" else ""
        return ExecutionResult(0, text.encode(), b"", 0.0)

    async def snapshot(self, slot: Slot, *, keep_s: float | None = None) -> Snapshot:
        await self._answer()
        if self.refuses:
            raise NoSnapshot(self.refuses)
        self.count += 1
        snapshot_id = f"copy{self.count}"
        self.kept[snapshot_id] = (slot.trajectory_id, list(self.files[slot.slot_id]))
        return Snapshot(snapshot_id, slot.trajectory_id, 10)

    async def restore(self, slot: Slot, snapshot_id: str) -> None:
        await self._answer_unless("never_restores")
        if self.has_no_room:
            error = NoSnapshot("no space left on device")
            error.may_pass = True
            raise error
        if snapshot_id not in self.kept:
            raise NoSnapshot("this host does not have the snapshot")
        self.files[slot.slot_id] = list(self.kept[snapshot_id][1])

    async def snapshots(self) -> list[Snapshot]:
        return [Snapshot(name, kept[0], 10, 500.0) for name, kept in self.kept.items()]

    async def drop_snapshot(self, snapshot_id: str) -> None:
        await self._answer()
        if self.drops_none:
            raise OSError("the disk is read-only")
        self.kept.pop(snapshot_id, None)

    async def _answer(self) -> None:
        await self._answer_unless("never_answers")

    async def _answer_unless(self, silence: str) -> None:
        while getattr(self, silence):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
