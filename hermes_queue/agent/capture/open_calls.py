"""Calls that are being sampled, and replies that their clients do not have yet."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hermes_queue.agent.capture.calls import Answer
from hermes_queue.agent.capture.equality import Measure
from hermes_queue.cancellation import end_tasks


@dataclass(slots=True, eq=False)
class Sampling:
    """One call, until its reply is delivered. It does not hold the call's text."""

    measure: Measure
    task: asyncio.Task[Answer]

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without a reply."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


class OpenCalls:
    """The calls of one attempt that are not delivered."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Answer]] = set()
        self._unclaimed: defaultdict[bytes, list[Sampling]] = defaultdict(list)
        """Those whose client went away, by what equal calls share; oldest first."""
        self._by_turn: dict[int, Sampling] = {}

    def begin(self, measure: Measure, work: Coroutine[Any, Any, Answer]) -> Sampling:
        """Do the `work` for a call in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        sampling = Sampling(measure, task)
        self._running.add(task)
        task.add_done_callback(lambda _: self._ended(sampling))
        return sampling

    def _ended(self, sampling: Sampling) -> None:
        self._running.discard(sampling.task)
        if sampling.has_failed:
            self._forget(sampling)  # an equal call is a new one
        else:
            self._by_turn[sampling.task.result().turn] = sampling

    def claim(self, measure: Measure) -> Sampling | None:
        """The oldest equal call whose client went away."""
        waiting = self._unclaimed.get(measure.digest)
        if not waiting:
            return None
        sampling = waiting[0]
        self._forget(sampling)
        return sampling

    def give_up(self, sampling: Sampling) -> None:
        """Its client went away; `claim` finds it from now on. Idempotent."""
        waiting = self._unclaimed[sampling.measure.digest]
        if not sampling.has_failed and sampling not in waiting:
            waiting.append(sampling)

    def of_turn(self, turn: int) -> Sampling | None:
        """The call whose reply is this turn; None if it was delivered."""
        return self._by_turn.get(turn)

    def deliver(self, turn: int) -> Sampling | None:
        """Drop the call whose reply is this turn, and return it; None if it was delivered."""
        sampling = self._by_turn.pop(turn, None)
        if sampling is not None:
            self._forget(sampling)
        return sampling

    def _forget(self, sampling: Sampling) -> None:
        waiting = self._unclaimed.get(sampling.measure.digest, [])
        with suppress(ValueError):
            waiting.remove(sampling)
        if not waiting:
            self._unclaimed.pop(sampling.measure.digest, None)

    @property
    def are_running(self) -> bool:
        """Whether any is being sampled."""
        return bool(self._running)

    async def idle(self) -> None:
        """Wait until none is being sampled."""
        while self._running:
            await asyncio.wait(set(self._running))

    def cancel(self) -> None:
        """Cancel those that are being sampled."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """Cancel them and wait for their end."""
        await end_tasks(*self._running)
