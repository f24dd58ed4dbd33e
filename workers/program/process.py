"""A program's process, until it ends or has to."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hermes_queue.agent.budget import AttemptBudget
from hermes_queue.agent.capture.session import AttemptSession
from hermes_queue.errors import SandboxError, SlotKilled, SlotLost
from hermes_queue.sandbox.base import (
    ExecutionRequest,
    ExecutionResult,
    Listening,
    SandboxBackend,
    Slot,
)
from hermes_queue.sandbox.context import SlotContext

LEAVE_S = 5.0
"""For a program to end by itself after it was refused a call because of a limit."""
LAST_OUTPUT_S = 5.0
"""For the result of a program that was killed."""
LONGEST_S = 86_400.0
"""Limit of the command itself. The deadline, which waits move, is watched here."""
OUTPUT_MAX_BYTES = 32 << 10
"""Kept of each stream: its beginning and its end."""

_Running = asyncio.Future[list[ExecutionResult | SandboxError]]


class ProgramProcess:
    """Runs one command line to its end."""

    def __init__(self, backend: SandboxBackend, slot: Slot) -> None:
        self._backend = backend
        self._slot = slot
        self.result: ExecutionResult | None = None
        """None: it was killed, and its output is unknown."""
        self.ended_by_itself = False
        self.left_a_call = False
        """Whether it ended by itself while a call of its was open."""
        self.lost: SandboxError | None = None

    async def run(
        self, command: str, session: AttemptSession, budget: AttemptBudget, listening: Listening
    ) -> None:
        """Run it until it ends, its session does, or the way to its endpoint is lost.

        Cancellation kills it.
        """
        request = ExecutionRequest(
            self._slot,
            command,
            timeout_s=LONGEST_S,
            max_output_bytes=OUTPUT_MAX_BYTES,
        )
        running = asyncio.ensure_future(self._backend.execute_batch([request]))
        stopped = asyncio.ensure_future(session.ended.wait())
        try:
            await self._wait(running, stopped, session, budget, listening)
            self.ended_by_itself = running.done()
            self.left_a_call = self.ended_by_itself and session.is_busy
            if listening.lost.done() and not listening.lost.cancelled():
                self.lost = listening.lost.result()
            if not running.done():
                await self._kill(running)
            self._take(running)
            if self.result and self.result.timed_out:
                session.stop("time_limit")
        finally:
            stopped.cancel()
            await _cancelled(running)

    async def _wait(
        self,
        running: _Running,
        stopped: asyncio.Future[Any],
        session: AttemptSession,
        budget: AttemptBudget,
        listening: Listening,
    ) -> None:
        ends: set[asyncio.Future[Any]] = {running, stopped, listening.lost}
        while not running.done() and not listening.lost.done():
            if stopped.done():
                at_once = session.failure is not None or session.stop_reason == "time_limit"
                await asyncio.wait([running], timeout=0.0 if at_once else LEAVE_S)
                return
            left_s = budget.deadline - time.monotonic()
            if left_s > 0:
                await asyncio.wait(ends, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            elif session.is_busy:  # a call knows whether its waits have moved the deadline
                await _any_of(ends, session)
            else:
                session.stop("time_limit")
                return

    async def _kill(self, running: _Running) -> None:
        if self._backend.capabilities.isolation and self.lost is None:
            context = SlotContext(self._backend, self._slot, deadline=math.inf)
            with suppress(SandboxError):
                await context.kill_processes()
        if self._backend.capabilities.isolation or self.lost:
            # The command says how its slot has ended.
            await asyncio.wait([running], timeout=LAST_OUTPUT_S)
        await _cancelled(running)

    def _take(self, running: _Running) -> None:
        result: ExecutionResult | SandboxError
        if running.cancelled():
            return
        try:
            [result] = running.result()
        except SandboxError as error:
            result = error
        if not isinstance(result, SandboxError):
            self.result = result
        elif isinstance(result, SlotKilled):
            self.lost = result
        elif self.lost is None and (self.ended_by_itself or isinstance(result, SlotLost)):
            self.lost = result  # other failures of a command that we killed mean nothing


async def _any_of(ends: Iterable[asyncio.Future[Any]], session: AttemptSession) -> None:
    idle = asyncio.ensure_future(session.idle())
    try:
        await asyncio.wait({*ends, idle}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        idle.cancel()


async def _cancelled(running: _Running) -> None:
    """Cancel it and wait until its process tree is dead."""
    running.cancel()
    await asyncio.wait([running])
