"""Whether one more call of a program may be made, and how many tokens its reply may have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hermes_queue.agent.budget import AttemptBudget, Uncounted
from hermes_queue.agent.loop import AgentResult, BeforeTurn
from hermes_queue.models import StopReason

CALLS_PER_TURN = 4
"""Side calls (titles, summaries) use no turn, but there are at most this many calls per turn."""
CALLS_AT_LEAST = 64


class LimitReached(Exception):
    """A limit of the job allows no further call."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason


class Allowance:
    """Counts the calls of one attempt, of which several may be open at once."""

    def __init__(
        self, budget: AttemptBudget, result: AgentResult, before_turn: BeforeTurn | None = None
    ) -> None:
        self.budget = budget
        self._result = result
        self._before_turn = before_turn
        self._open_calls = self._open_turns = 0
        self._reserved = 0
        """Tokens that the replies of open calls may take of the job's limit."""
        self._ended = asyncio.Event()
        """Set when an open call ends, and then replaced."""
        self._uncounted = Uncounted()

    @asynccontextmanager
    async def call(
        self, cap: int | None, *, side: bool, rival_turns: int | None = None
    ) -> AsyncIterator[int | None]:
        """One call, whose reply the program wants to have at most `cap` tokens.

        `rival_turns`: turns of its side conversation, if that may become the main one. It has no
        more turns than the main one may have.
        Gives the tokens that the job's limit leaves for it, None = any number. A call that fails
        uses no turn. Raises LimitReached, or what `before_turn` and an unknown price raise.
        """
        left = await self._left(side, rival_turns)
        reserved = 0
        if left is not None:
            wanted = self.budget.reply_cap(left) if cap is None else min(cap, left)
            reserved = min(left, wanted or left)
        self._reserved += reserved
        self._count(1, side)
        try:
            await self._wait()
            yield left
        finally:
            self._count(-1, side)
            self._reserved -= reserved
            self._ended.set()
            self._ended = asyncio.Event()

    def _count(self, calls: int, side: bool) -> None:
        self._open_calls += calls
        self._open_turns += 0 if side else calls

    def _turns(self) -> int:
        """Turns so far and calls that may become one, without those of side branches."""
        branches = self._result.branches
        labels = (branches[turn.branch or 0].label for turn in self._result.turns)
        return self._open_turns + sum(label != "side" for label in labels)

    async def _left(self, side: bool, rival_turns: int | None) -> int | None:
        """Tokens left for a further call, once no limit forbids it."""
        while True:
            limits = self.budget.limits
            most = max(CALLS_AT_LEAST, CALLS_PER_TURN * limits.max_turns)
            turns = self._turns()
            if side:
                turns = 0 if rival_turns is None else rival_turns + self._open_calls
            if len(self._result.turns) + self._open_calls >= most:
                turns = limits.max_turns
            if reason := self.budget.exhausted(turns, self._result):
                raise LimitReached(reason)
            left = self.budget.tokens_left(self._result)
            if left is None or left > self._reserved:
                return None if left is None else left - self._reserved
            # What is left may still be returned by a reply that is shorter than it may be.
            await self._ended.wait()

    async def _wait(self) -> None:
        if self._before_turn is not None:
            began = time.monotonic()
            try:
                await self._before_turn()
            finally:
                self.exclude(time.monotonic() - began)

    def exclude(self, seconds: float) -> None:
        """Take the last `seconds` off the agent's time, but none of it a second time."""
        now = time.monotonic()
        new_s = self._uncounted.add(now - seconds, now)
        self.budget.deadline += new_s
        self._result.waited_s += new_s
