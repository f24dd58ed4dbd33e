"""Leasing and releasing a slot of a backend that may hang."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from hermes_queue.errors import DeadlineExceeded, SandboxError
from hermes_queue.sandbox.base import SandboxBackend, Slot, SlotSpec
from workers.clock import Clock

logger = logging.getLogger(__name__)

_left: set[asyncio.Task[Any]] = set()
"""Resets that nobody waits for any more; asyncio keeps no reference to its tasks."""


async def acquired(
    clock: Clock, backend: SandboxBackend, trajectory_id: str, spec: SlotSpec, limit_s: float | None
) -> Slot:
    """The stage in which a slot is leased, in `limit_s` at most.

    Raises:
        SandboxError: there was no slot until then.
    """
    try:
        async with clock.stage("acquire", limit_s=limit_s):
            return await backend.acquire(trajectory_id, spec)
    except DeadlineExceeded as error:
        failure = SandboxError(
            f"no slot within {limit_s:g} s (HERMES_QUEUE_WORKER_ACQUIRE_TIMEOUT_S): the backend "
            "hangs, or has fewer slots than the worker takes jobs"
        )
        failure.stage = "acquire"
        raise failure from error


async def released(backend: SandboxBackend, slot: Slot, limit_s: float | None) -> None:
    """`SandboxBackend.release`; a reset that takes longer than `limit_s` goes on without us.

    Backends finish it even if they are cancelled, or slots would leak. The slot is not used again
    before it has ended, if it ever does. An error of the backend is only logged: it would stand for
    what the attempt itself has ended with.
    """
    try:
        await _released(backend, slot, limit_s)
    except Exception as error:  # noqa: BLE001 - of a foreign backend
        extra = {"action": "release_failed", "trajectory_id": slot.trajectory_id}
        logger.error("slot %s could not be reset: %r", slot.slot_id, error, extra=extra)


async def _released(backend: SandboxBackend, slot: Slot, limit_s: float | None) -> None:
    if limit_s is None:
        return await backend.release(slot)
    loop = asyncio.get_running_loop()
    releasing, over = loop.create_task(backend.release(slot)), loop.create_future()
    releasing.add_done_callback(lambda _: _set(over))
    timer = loop.call_later(limit_s, _set, over)
    try:
        await over
    finally:
        timer.cancel()
        if not releasing.done():
            _left.add(releasing)
            releasing.add_done_callback(_left.discard)
    if releasing.done():
        return releasing.result()
    extra = {"action": "release_hangs", "trajectory_id": slot.trajectory_id}
    logger.error("slot %s is not reset after %g s", slot.slot_id, limit_s, extra=extra)
    return None


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
