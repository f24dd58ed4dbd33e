"""Slots that run a list of trajectories against one engine."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from benchmarks.engines.engine import Call, Engine, Hardware
from benchmarks.engines.load import Task
from benchmarks.engines.policies import Policy

TICK_S = 2.0
TAIL = 0.95
"""Share of the work that counts: at its end slots are empty, whatever the policy."""


class Slots:
    """Runs trajectories one after another in each slot."""

    def __init__(self, tasks: Sequence[Task], engine: Engine, policy: Policy) -> None:
        self.engine, self.policy = engine, policy
        self.ends: list[float] = []
        self._tasks = iter(enumerate(tasks))
        self._count = len(tasks)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = itertools.count()

    def run(self, slots: int) -> dict[str, float]:
        """Goodput: trajectories a second until `TAIL` of the list is done."""
        engine, target = self.engine, int(TAIL * self._count)
        for slot in range(slots):
            self._at(0.05 * slot, self._begin)
        self._at(0.0, self._tick)
        while len(self.ends) < target:
            until = self._events[0][0]
            if engine.now < until and (engine.running or engine.waiting):
                engine.advance(until)
                continue
            engine.now = max(engine.now, until)
            heapq.heappop(self._events)[2](engine.now)
        return {
            "goodput": target / self.ends[target - 1],
            "hits": engine.hits / max(1, engine.queries),
            "preemptions": engine.preemptions,
        }

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), what))

    def _begin(self, now: float) -> None:
        found = next(self._tasks, None)
        if found is not None:
            key, task = found
            self._at(now + task.rest_s / 2, lambda now: self._turn(now, key, task, 0, task.prompt))

    def _turn(self, now: float, key: int, task: Task, index: int, context: int) -> None:
        reply, observation, tool_s = task.turns[index]

        def go(now: float) -> None:
            self.engine.now = max(self.engine.now, now)
            self.engine.submit(Call(key, context, reply, replied))

        def replied(now: float) -> None:
            self.policy.replied(key, context + reply, now)
            if index + 1 < len(task.turns):
                after = context + reply + observation
                self._at(now + tool_s, lambda now: self._turn(now, key, task, index + 1, after))
            else:
                self.policy.ended(key, now)
                self._at(now + task.rest_s / 2, self._end)

        self.policy.call(key, context, go, now)

    def _end(self, now: float) -> None:
        self.ends.append(now)
        self._begin(now)

    def _tick(self, now: float) -> None:
        self.policy.tick(now)
        self._at(now + TICK_S, self._tick)


def run(
    tasks: Sequence[Task],
    policy_of: Callable[[Engine], Policy],
    *,
    slots: int = 256,
    hardware: Hardware | None = None,
) -> dict[str, float]:
    """Goodput of a policy, with the engine's share of cached prompt tokens and its preemptions."""
    engine = Engine(hardware or Hardware())
    return Slots(tasks, engine, policy_of(engine)).run(slots)
