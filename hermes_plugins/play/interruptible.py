"""A backend that passes everything on, and whose running commands a person can interrupt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import (
    ExecutionRequest,
    ExecutionResult,
    SandboxBackend,
    Slot,
    SlotSpec,
)

INTERRUPTED_EXIT_CODE = 130
"""As a shell reports a command that Ctrl-C has ended."""


class InterruptibleBackend:
    """Another backend with two additions: `slot`, the leased one, and `interrupt`."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._running: set[asyncio.Task[Any]] = set()
        self.slot: Slot | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def interrupt(self) -> bool:
        """End the commands that run now, with all their processes; returns whether there were any.

        Their callers are answered with exit code 130; the output is lost.
        """
        running = [task for task in self._running if not task.done()]
        for task in running:
            task.cancel()
        return bool(running)

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        """See `SandboxBackend.acquire`."""
        self.slot = await self._backend.acquire(trajectory_id, spec)
        return self.slot

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        """See `SandboxBackend.renew`."""
        self.slot = await self._backend.renew(slot, spec)
        return self.slot

    async def release(self, slot: Slot) -> None:
        """See `SandboxBackend.release`."""
        self.slot = None
        await self._backend.release(slot)

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        """See `SandboxBackend.execute_batch`."""
        began = time.monotonic()
        task = asyncio.ensure_future(self._backend.execute_batch(requests))
        self._running.add(task)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # of the caller, whose commands must not live on
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self._running.discard(task)
        if not task.cancelled():
            return task.result()
        interrupted = ExecutionResult(
            INTERRUPTED_EXIT_CODE,
            b"",
            b"",
            time.monotonic() - began,
            notice="interrupted; its output is lost",
        )
        return [interrupted for _ in requests]
