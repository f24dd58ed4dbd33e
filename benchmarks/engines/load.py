"""Trajectories as they come: turns, what each adds to the context, and what its tools take."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One sort of task. Medians; the spread is lognormal."""

    prompt: int
    turns: float
    reply: int
    observation: int
    tool_s: float
    rest_s: float
    """Set-up before the first call and verification after the last, together."""
    spread: float = 0.5


SHORT = Kind(prompt=1500, turns=6, reply=150, observation=250, tool_s=2.0, rest_s=10.0)
LONG = Kind(prompt=4000, turns=30, reply=250, observation=900, tool_s=4.0, rest_s=20.0)


@dataclass(frozen=True)
class Task:
    """One trajectory. Of each turn: tokens of the reply, of its observation, seconds of tools."""

    prompt: int
    turns: tuple[tuple[int, int, float], ...]
    rest_s: float


def drawn(kind: Kind, dice: random.Random) -> Task:
    def around(median: float, spread: float = kind.spread) -> float:
        return median * math.exp(dice.gauss(0, spread))

    turns = max(1, min(120, round(around(kind.turns))))
    steps = tuple(
        (
            max(8, round(around(kind.reply))),
            max(8, round(around(kind.observation, 0.8))),
            around(kind.tool_s, 0.8),
        )
        for _ in range(turns)
    )
    return Task(round(around(kind.prompt)), steps, around(kind.rest_s))


def tasks(load: str, seed: int, scale: float = 1.0) -> list[Task]:
    """A list of work. `short`, `long`: all alike; `mixed`: both at once; `changing`: in turns."""
    dice = random.Random(seed)

    def some(kind: Kind, count: int) -> list[Task]:
        return [drawn(kind, dice) for _ in range(round(count * scale))]

    if load == "short":
        return some(SHORT, 6000)
    if load == "long":
        return some(LONG, 700)
    if load == "mixed":
        both = some(SHORT, 2000) + some(LONG, 500)
        dice.shuffle(both)
        return both
    if load == "changing":
        return [task for _ in range(2) for task in (*some(SHORT, 3000), *some(LONG, 350))]
    raise ValueError(load)


LOADS = ("short", "long", "mixed", "changing")
