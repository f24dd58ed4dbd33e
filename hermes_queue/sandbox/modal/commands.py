"""Commands and files of slots that a Modal backend has leased."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox import files
from hermes_queue.sandbox.base import MAX_FILE_BYTES, ExecutionRequest, ExecutionResult, Slot
from hermes_queue.sandbox.modal.box import Lease, ModalSandbox
from hermes_queue.sandbox.modal.pool import Pool


@dataclass(slots=True)
class Held:
    """A leased slot and its sandbox."""

    pool: Pool
    box: ModalSandbox
    lease: Lease


class SlotCommands:
    """The part of `SandboxBackend` that works in leased slots."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        """See `SandboxBackend`."""
        return list(await asyncio.gather(*(self._execute(request) for request in requests)))

    async def _execute(self, request: ExecutionRequest) -> ExecutionResult | SandboxError:
        try:
            held = self._leased_slot(request.slot)
            with self._noticing(held):
                return await held.box.run(
                    held.lease,
                    ["/bin/bash"],
                    command=request.command,
                    stdin=request.stdin,
                    env=request.env,
                    cwd=request.cwd or request.slot.workspace,
                    timeout_s=request.timeout_s,
                    max_output_bytes=request.max_output_bytes,
                )
        except SandboxError as error:
            return error

    @contextlib.contextmanager
    def _noticing(self, held: Held) -> Iterator[None]:
        """Mark a sandbox as spent when it is lost."""
        try:
            yield
        except SlotLost:
            held.box.spent = True
            raise

    async def read_file(self, slot: Slot, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """See `SandboxBackend`."""
        held = self._leased_slot(slot)
        with self._noticing(held):
            return await files.read_file(_whole(held), path, max_bytes=max_bytes)

    async def write_file(self, slot: Slot, path: str, data: bytes) -> None:
        """See `SandboxBackend`."""
        held = self._leased_slot(slot)
        with self._noticing(held):
            await files.write_file(_whole(held), path, data)

    def _leased_slot(self, slot: Slot) -> Held:
        held = self._held.get(slot.slot_id)
        if held is None:
            raise SlotLost(f"slot {slot.slot_id} is not leased")
        return held


def _whole(held: Held) -> files.RunInSlot:
    """`Box.run` for whole output: a part of a file would pass for all of it."""
    return functools.partial(held.box.run, held.lease, whole=True)
