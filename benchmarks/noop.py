"""A sandbox without a sandbox, for workers of the benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import (
    AssetSpec,
    Capabilities,
    ExecutionRequest,
    ExecutionResult,
    Listening,
    SandboxInfo,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.listening.sockets import SocketListening, listen_on_loopback

WORKER = {"HERMES_QUEUE_SANDBOX_BACKEND": "benchmarks.noop:NoopBackend"}
"""Settings of a worker that has it."""


class NoopBackend:
    """Every command succeeds and says nothing."""

    capabilities = Capabilities(isolation=False)
    free_slots = 1 << 20

    def __init__(self, **_: object) -> None:
        self._leases = 0

    def resize(self, slots: int) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def prepare(self, spec: SlotSpec) -> None: ...

    async def read_asset(self, asset: AssetSpec, path: str, *, max_bytes: int = 0) -> bytes:
        raise FileNotFoundError(path)

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        self._leases += 1
        return Slot(f"noop-{self._leases}", trajectory_id, "noop", "/workspace", spec)

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        return [ExecutionResult(0, b"", b"", 0.0) for _ in requests]

    async def read_file(self, slot: Slot, path: str, *, max_bytes: int = 0) -> bytes:
        raise FileNotFoundError(path)

    async def write_file(self, slot: Slot, path: str, data: bytes) -> None: ...

    async def listen(self, slot: Slot, factory: Callable[[], asyncio.BaseProtocol]) -> Listening:
        return SocketListening(listen_on_loopback(), factory)

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        return slot

    async def release(self, slot: Slot) -> None: ...

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        return []

    async def terminate(self, sandbox_id: str) -> None: ...
