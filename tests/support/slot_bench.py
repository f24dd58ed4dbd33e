"""A leased slot of a real local sandbox, for tests of what runs in one."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hermes_queue.sandbox.base import SlotSpec
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
