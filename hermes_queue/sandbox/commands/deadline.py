"""Waiting for a command that has a time limit and can only be ended by killing its tree."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxError


async def ran_out_of_time(
    waiting: asyncio.Future[Any],
    timeout_s: float,
    end: Callable[[], Awaitable[None]] | None,
    *,
    who: str,
) -> bool:
    """Wait for `waiting`; returns whether time ran out, and `end` has ended the command.

    If the wait is cancelled, the command is ended, too; the reset of its slot tries again.

    Raises:
        SandboxError: time ran out, and without `end` that means that `who` does not answer; or
            what `end` raises.
    """
    try:
        await asyncio.wait({waiting}, timeout=timeout_s)
    except asyncio.CancelledError:
        if end is not None:
            with contextlib.suppress(SandboxError):
                await unbroken(end())
        raise
    if waiting.done():
        return False
    if end is None:
        raise SandboxError(f"the {who} did not answer within {timeout_s:g} s")
    await unbroken(end())
    return True
