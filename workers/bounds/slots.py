"""Leasing and releasing a slot of a backend that may hang.

A backend finishes what it has begun even if it is cancelled, or slots would leak. So a call that
hangs cannot be ended; it is left alone and, when it returns after all, its slot is given back.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from hermes_queue.errors import SandboxError, TrajectoryFailure
from hermes_queue.sandbox.base import SandboxBackend, Slot, SlotSpec

logger = logging.getLogger(__name__)

_CANCEL_S = 5.0
"""How long a cancelled call may take to give up."""
_left: set[asyncio.Task[Any]] = set()
"""Calls that nobody waits for any more; asyncio keeps no reference to its tasks."""


async def acquired(
    backend: SandboxBackend, trajectory_id: str, spec: SlotSpec, limit_s: float | None
) -> Slot:
    """`SandboxBackend.acquire`, but for `limit_s` at most.

    Raises:
        SandboxError: there was no slot until then.
    """
    if limit_s is None:
        return await backend.acquire(trajectory_id, spec)
    asking = asyncio.ensure_future(backend.acquire(trajectory_id, spec))
    try:
        await asyncio.wait({asking}, timeout=limit_s)
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking}, timeout=_CANCEL_S)
    except asyncio.CancelledError:
        await _given_up(asking, backend)
        raise
    if asking.done() and not asking.cancelled():
        return asking.result()
    await _given_up(asking, backend)
    raise SandboxError(
        f"no slot within {limit_s:g} s (HERMES_QUEUE_WORKER_ACQUIRE_TIMEOUT_S): the backend hangs, "
        "or has fewer slots than the worker takes jobs"
    )


async def released(backend: SandboxBackend, slot: Slot, limit_s: float | None) -> None:
    """`SandboxBackend.release`; a reset that takes longer than `limit_s` goes on without us.

    The slot is not used again before it has ended, if it ever does.
    """
    if limit_s is None:
        return await backend.release(slot)
    releasing = asyncio.ensure_future(backend.release(slot))
    _keep(releasing)
    await asyncio.wait({releasing}, timeout=limit_s)
    if releasing.done():
        return releasing.result()
    extra = {"action": "release_hangs", "trajectory_id": slot.trajectory_id}
    logger.error("slot %s is not reset after %g s", slot.slot_id, limit_s, extra=extra)
    return None


async def _given_up(asking: asyncio.Task[Slot], backend: SandboxBackend) -> None:
    """Give back what a call returns for which nobody waits any more."""
    asking.cancel()

    async def give_back() -> None:
        with suppress(asyncio.CancelledError, TrajectoryFailure):
            await backend.release(await asking)

    returning = asyncio.ensure_future(give_back())
    _keep(returning)
    await asyncio.sleep(0)


def _keep(task: asyncio.Task[Any]) -> None:
    _left.add(task)
    task.add_done_callback(_left.discard)
