"""Copying a slot's files, restoring and deleting such copies, with a backend that may hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.snapshots import KeepsSnapshots, Snapshot

logger = logging.getLogger(__name__)
T = TypeVar("T")

DROP_S = 60.0
"""How long deleting a copy may take."""
_GRACE_S = 10.0
"""How long a call may take to end once it is cancelled."""
_left: set[asyncio.Task[Any]] = set()
"""Calls that nobody waits for any more; asyncio keeps no reference to its tasks."""


async def copied(copy: Coroutine[Any, Any, Snapshot], *, limit_s: float) -> Snapshot:
    """`KeepsSnapshots.snapshot` within `limit_s`, even if the backend ignores cancellation.

    A copy that is finished later is not used; `UnneededSnapshots` deletes it.

    Raises:
        NoSnapshot: as the backend does.
        SandboxError: as the backend does, or it has not answered in time.
    """
    return await _within(copy, limit_s, "the slot's files could not be copied")


async def restored(restore: Coroutine[Any, Any, None], *, limit_s: float) -> None:
    """`KeepsSnapshots.restore` within `limit_s`, even if the backend ignores cancellation.

    Raises:
        NoSnapshot: as the backend does.
        SandboxError: as the backend does, or it has not answered in time.
    """
    await _within(restore, limit_s, "the copy of the slot's files could not be restored")


async def dropped(backend: KeepsSnapshots, snapshot_id: str) -> None:
    """`KeepsSnapshots.drop_snapshot`; one that takes longer than `DROP_S` is given up.

    Never raises, even if the backend does: no work or score depends on a copy that is not needed.
    """
    dropping = asyncio.ensure_future(backend.drop_snapshot(snapshot_id))
    await _ended(dropping, DROP_S)
    if dropping.done() and not dropping.cancelled() and (error := dropping.exception()):
        logger.info("a snapshot stays: %s", error, extra={"action": "snapshot_left"})


async def _within(call: Coroutine[Any, Any, T], limit_s: float, late: str) -> T:
    calling = asyncio.ensure_future(call)
    await _ended(calling, limit_s)
    if calling.done() and not calling.cancelled():
        return calling.result()
    raise SandboxError(f"{late} within {limit_s:g} s")


async def _ended(task: asyncio.Task[Any], limit_s: float) -> None:
    """Wait for it; one that goes on after its limit, or when we are cancelled, is cancelled."""
    try:
        await asyncio.wait({task}, timeout=limit_s)
    finally:
        if not task.done():
            _left.add(task)
            task.add_done_callback(_forgotten)
            task.cancel()
            await asyncio.wait({task}, timeout=_GRACE_S)


def _forgotten(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio logs that nobody has asked for it
