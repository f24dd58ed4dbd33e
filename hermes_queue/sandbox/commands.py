"""Commands and files of leased slots, for backends that can run a program in a slot."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox import files
from hermes_queue.sandbox.base import MAX_FILE_BYTES, ExecutionRequest, ExecutionResult, Slot


class SlotCommands(ABC):
    """The half of `SandboxBackend` that works in leased slots."""

    @abstractmethod
    def _in_slot(
        self, slot: Slot, *, whole: bool = False
    ) -> AbstractContextManager[files.RunInSlot]:
        """Runs programs in the slot; with `whole`, output that is cut short is an error.

        Raises:
            SlotLost: it is not leased.
        """

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        """See `SandboxBackend`."""
        return list(await asyncio.gather(*(self._execute(request) for request in requests)))

    async def _execute(self, request: ExecutionRequest) -> ExecutionResult | SandboxError:
        try:
            with self._in_slot(request.slot) as run:
                return await run(
                    ["/bin/bash"],
                    script=request.command,
                    stdin=request.stdin,
                    env=request.env,
                    cwd=request.cwd or request.slot.workspace,
                    timeout_s=request.timeout_s,
                    max_output_bytes=request.max_output_bytes,
                )
        except SandboxError as error:
            return error

    async def read_file(self, slot: Slot, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """See `SandboxBackend`."""
        with self._in_slot(slot, whole=True) as run:
            return await files.read_file(run, path, max_bytes=max_bytes)

    async def write_file(self, slot: Slot, path: str, data: bytes) -> None:
        """See `SandboxBackend`."""
        with self._in_slot(slot, whole=True) as run:
            await files.write_file(run, path, data)
