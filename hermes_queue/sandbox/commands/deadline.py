"""Waiting for a command that has a time limit and can only be ended by killing its tree."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxError, SlotLost

KILL_ROUNDS = 10
KILL_PAUSE_S = 0.5
KILL_PATIENCE_S = 60.0
"""For a provider that does not take the program that kills; each try may take long."""
KillAttempt = Callable[[], Awaitable[None]]
"""Kills a command's tree; may be called before the command begins and after it has ended."""


class NoAnswer(SandboxError):
    """A program of ours has begun in a sandbox, and has not ended in time."""


async def kill_until_ended(waiting: asyncio.Future[Any], kill: KillAttempt) -> None:
    """Kill a command until a kill has succeeded and `waiting` is done.

    The first try may come before the command has begun.

    Raises:
        SlotLost: its sandbox has ended.
        SandboxError: it could not be killed.
    """
    why, began = "", time.monotonic()
    for _ in range(KILL_ROUNDS):
        try:
            await kill()
        except SlotLost:
            raise
        except SandboxError as error:
            # Though it may have ended meanwhile: what it has started may run, and fill the slot.
            why = f": {error}"
            if time.monotonic() - began > KILL_PATIENCE_S:
                break
            await asyncio.sleep(KILL_PAUSE_S)
            continue
        await asyncio.wait({waiting}, timeout=KILL_PAUSE_S)
        if waiting.done():
            return
    raise SandboxError(f"a command that ran out of time could not be killed{why}")


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
        NoAnswer: time ran out, and without `end` that means that `who` does not answer.
        SandboxError: what `end` raises.
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
        raise NoAnswer(f"the {who} did not answer within {timeout_s:g} s")
    await unbroken(end())
    return True
