"""The common part of backends that can run a program in a slot."""

from __future__ import annotations

import asyncio
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox import files
from hermes_queue.sandbox.base import (
    MAX_FILE_BYTES,
    ExecutionRequest,
    ExecutionResult,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.capacity import Capacity
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.settings import PathSettings


class SlotBackend(ABC):
    """Counts leases, and serves commands and files of leased slots."""

    def __init__(
        self, slots: int, labels: Mapping[str, str] | None, cache: Path | None, fleet: Fleet | None
    ) -> None:
        worker = f"{platform.node()}-{os.getpid()}"
        self.labels = {"deployment": "default", "worker": worker, **(labels or {})}
        self._cache = (cache or PathSettings().cache).absolute()
        self._fleet = fleet or Fleet()
        self._observer = self._fleet.observer
        self._capacity = Capacity(slots)
        self._opening = asyncio.Lock()
        self._started = False

    @property
    def free_slots(self) -> int:
        """See `SandboxBackend`."""
        return self._capacity.free

    def resize(self, slots: int) -> None:
        """See `SandboxBackend`."""
        self._capacity.resize(slots)

    @abstractmethod
    async def prepare(self, spec: SlotSpec) -> None:
        """See `SandboxBackend`."""

    @abstractmethod
    async def _lease(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        """Open a slot, for which there is capacity."""

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        """See `SandboxBackend`."""
        await self.prepare(spec)
        await self._capacity.acquire()
        try:
            return await self._lease(trajectory_id, spec)
        except BaseException:
            self._capacity.release()
            raise

    @abstractmethod
    def _in_slot(
        self, slot: Slot, *, whole: bool = False, user: str | None = None
    ) -> AbstractContextManager[files.RunInSlot]:
        """Runs programs in the slot; `whole`: output must not be cut short. Raises SlotLost.

        `user`: of a slot with an image; see `ExecutionRequest`.
        """

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        """See `SandboxBackend`."""
        return list(await asyncio.gather(*(self._execute(request) for request in requests)))

    async def _execute(self, request: ExecutionRequest) -> ExecutionResult | SandboxError:
        try:
            with self._in_slot(request.slot, user=request.user) as run:
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
