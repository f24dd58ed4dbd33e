"""Slots of real sandboxes, for tests of what runs in them."""

from __future__ import annotations

import atexit
import random
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import (
    ExecutionRequest,
    ExecutionResult,
    SandboxBackend,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.local.backend import LocalBackend

B = TypeVar("B", bound=LocalBackend)


@cache
def _directory() -> Path:
    """One per test process, since what a backend unpacks there takes a second."""
    directory = Path(tempfile.mkdtemp(prefix="hq-slot-"))
    directory.chmod(0o755)  # slots of a worker that is root run as somebody else
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@asynccontextmanager
async def leased_slot(
    spec: SlotSpec = SlotSpec(),  # noqa: B008 - frozen
    *,
    seconds: float = 120.0,
) -> AsyncIterator[SlotContext]:
    """A slot whose stage ends in `seconds`; its backend is gone afterwards."""
    async with local_backend() as backend:
        slot = await backend.acquire("t", spec)
        yield SlotContext(backend, slot, deadline=time.monotonic() + seconds)


@asynccontextmanager
async def local_backend(kind: type[B] = LocalBackend, **options: Any) -> AsyncIterator[B]:
    """With one slot."""
    backend = kind(slots=1, cache=_directory(), **options)
    try:
        await backend.start()
        yield backend
    finally:
        await backend.stop()


class SlotBench:
    """A started backend with one-line access to commands."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.backend = backend
        # Tests count their sleeping processes. Without namespaces they would also count those of
        # concurrent tests, so every bench sleeps for a different time.
        self._nap = str(random.randint(10**6, 10**7))

    async def slot(self, spec: SlotSpec = SlotSpec()) -> Slot:  # noqa: B008 - frozen
        """Lease a slot."""
        return await self.backend.acquire("trajectory", spec)

    async def answer(
        self, slot: Slot, command: str, **options: Any
    ) -> ExecutionResult | SandboxError:
        """The result of one command; the word 4242 in it becomes this bench's sleeping time."""
        command = re.sub(r"\b4242\b", self._nap, command)
        [answer] = await self.backend.execute_batch([ExecutionRequest(slot, command, **options)])
        return answer

    async def sh(self, slot: Slot, command: str, **options: Any) -> ExecutionResult:
        """The result of one command in a sandbox that lives."""
        answer = await self.answer(slot, command, **options)
        assert isinstance(answer, ExecutionResult), f"{command[:80]!r} was answered by {answer!r}"
        return answer

    async def out(self, slot: Slot, command: str, **options: Any) -> str:
        """The standard output of a successful command."""
        result = await self.sh(slot, command, **options)
        assert result.exit_code == 0, f"{command[:80]!r} ended with {result}"
        return result.stdout.decode().rstrip("\n")
