"""The local backend whose worker kills itself once at a point: `deadly_backend:backend`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from hermes_queue.sandbox.base import Slot
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.sandbox.snapshots import Snapshot

AT = "TEST_DEADLY_POINT"
"""Variable: `<point> <file>`; the worker dies there if the file exists, which it removes."""


def _dies(point: str) -> None:
    at, _, file = os.environ.get(AT, "").partition(" ")
    if at == point and Path(file).exists():
        Path(file).unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class DeadlyBackend(LocalBackend):
    async def snapshot(self, slot: Slot, *, keep_s: float | None = None) -> Snapshot:
        kept = await super().snapshot(slot, keep_s=keep_s)
        _dies("snapshot")
        return kept

    async def restore(self, slot: Slot, snapshot_id: str) -> None:
        await super().restore(slot, snapshot_id)
        _dies("restore")

    async def release(self, slot: Slot) -> None:
        _dies("release")
        await super().release(slot)


def backend(**options: Any) -> DeadlyBackend:
    return DeadlyBackend(**options)
