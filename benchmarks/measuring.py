"""How everything is measured: cases of several sides, in turns.

A *part* offers *cases*. The *sides* of a case do the same work; names of ours begin with "ours".
In every round each side has one *turn*, in an order that is reversed from round to round, so that
a busy neighbour meets all of them. Figures are the median of the rounds with the smallest and
largest one; ratios are taken within a round, ours to each other side.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
HERE = "here"
"""This process, the children it waited for, and those still running that have no other name."""


@dataclass(frozen=True)
class Turn:
    """What one turn of a side showed."""

    count: int
    """Units of work; 0 = only `facts` count."""
    wall_s: float
    cpu_s: float
    """Of the processes that this side has to answer for."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Further figures, each with its unit in its name."""
    busy_elsewhere: float = 0.0
    """Processors that other programs of this machine, and its other guests, kept busy meanwhile."""


Side = Callable[[], Turn]
Cases = Mapping[str, Mapping[str, Side | str]]
"""Sides by case and name; a text in place of a side says why it cannot run here."""


@dataclass(frozen=True)
class Part:
    """Something that is measured; its module's docstring says what each side does."""

    unit: str
    """What is counted."""
    cases: Callable[[float], AbstractContextManager[Cases]]
    """Called with a factor for all counts; what it starts has ended at the end of its context."""
    rounds: int = 3


class Meter:
    """Wall and CPU time of the block `with metered() as meter`; complete at its end."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._roots = {pid: name for name, pid in pids.items()} | {os.getpid(): HERE}
        self.cpu_s: dict[str, float] = {}
        """Seconds by process."""
        self.wall_s = 0.0
        self.busy_elsewhere = 0.0

    def begin(self) -> None:
        """Take the first reading."""
        self._others, self._busy_s = self._below(), _busy_s()
        self._own, self._began = _own_s(), time.perf_counter()

    def end(self) -> None:
        """Take the second one, in the opposite order: reading costs CPU time of this process."""
        self.wall_s = time.perf_counter() - self._began
        own, others, busy_s = _own_s(), self._below(), _busy_s()
        self.cpu_s = {name: others[name] - self._others[name] for name in others}
        self.cpu_s[HERE] += own - self._own
        elsewhere = busy_s - self._busy_s - sum(self.cpu_s.values())
        self.busy_elsewhere = max(0.0, elsewhere / self.wall_s)

    def turn(
        self, count: int, *, of: Sequence[str] = (), facts: Mapping[str, float] | None = None
    ) -> Turn:
        """The turn, answerable for the CPU time of the processes `of`; () = of all.

        `facts` may hold more figures. CPU times by process are added if there are several.
        """
        by_process = {
            f"{name}_cpu_ms": 1000 * used / max(1, count)
            for name, used in self.cpu_s.items()
            if len(self.cpu_s) > 1
        }
        cpu_s = sum(self.cpu_s[name] for name in of or self.cpu_s)
        return Turn(count, self.wall_s, cpu_s, by_process | dict(facts or {}), self.busy_elsewhere)

    def _below(self) -> dict[str, float]:
        """CPU seconds of each root with all that runs below it, but not of this very process."""
        parents, used = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it has just ended
            pid = int(path.parent.name)
            parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS_PER_S
        used.pop(os.getpid(), None)
        totals = dict.fromkeys(self._roots.values(), 0.0)
        for pid, seconds in used.items():
            while pid not in self._roots and pid in parents:
                pid = parents[pid]
            if pid in self._roots:
                totals[self._roots[pid]] += seconds
        return totals


@contextmanager
def metered(**pids: int) -> Iterator[Meter]:
    """Measure the block: this process and, under names of their own, the processes `pids`.

    Each includes all that runs below it and the children it waited for.
    """
    meter = Meter(pids)
    meter.begin()
    yield meter
    meter.end()


def _own_s() -> float:
    return time.process_time() + sum(os.times()[2:4])


def _busy_s() -> float:
    """Seconds that all processors worked, or worked for other guests."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, stat.readline().split()[1:])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def measure(
    part: Part, *, scale: float, rounds: int, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run all rounds of a part; its results as JSON takes them."""
    load = os.getloadavg()[0]
    with part.cases(scale) as cases:
        turns: dict[str, dict[str, list[Turn]]] = {
            case: {name: [] for name, side in sides.items() if not isinstance(side, str)}
            for case, sides in cases.items()
        }
        for number in range(rounds):
            for case, sides in cases.items():
                for name in list(turns[case])[:: -1 if number % 2 else 1]:
                    say(f"round {number + 1}: {case}: {name}")
                    side = sides[name]
                    assert not isinstance(side, str)
                    turns[case][name].append(side())
        missing = {
            f"{case}: {name}": side
            for case, sides in cases.items()
            for name, side in sides.items()
            if isinstance(side, str)
        }
    return {
        "unit": part.unit,
        "rounds": rounds,
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "missing": missing,
        "cases": {case: _case(of_case) for case, of_case in turns.items()},
    }


def _case(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    sides = {name: _side(of_side) for name, of_side in turns.items()}
    ratios = [
        {"side": ours, "to": other, **_ratios(turns[ours], turns[other])}
        for ours in turns
        for other in turns
        if ours.startswith("ours") and not other.startswith("ours") and turns[other][0].count
    ]
    return {"sides": sides, "ratios": ratios}


def _side(turns: Sequence[Turn]) -> dict[str, Any]:
    timed = [turn for turn in turns if turn.count]
    found: dict[str, Any] = {"count": turns[0].count}
    if timed:
        found["per_s"] = spread([turn.count / turn.wall_s for turn in timed])
        found["cpu_ms"] = spread([1000 * turn.cpu_s / turn.count for turn in timed])
    found["busy_elsewhere"] = spread([turn.busy_elsewhere for turn in turns])
    names = turns[0].facts
    found["facts"] = {name: spread([turn.facts[name] for turn in turns]) for name in names}
    return found


def _ratios(ours: Sequence[Turn], others: Sequence[Turn]) -> dict[str, Any]:
    """Of rates and of CPU times, round by round."""
    pairs = list(zip(ours, others, strict=True))
    rates = [(a.count / a.wall_s) / (b.count / b.wall_s) for a, b in pairs]
    cpu = [(a.cpu_s / a.count) / (b.cpu_s / b.count) for a, b in pairs if b.cpu_s]
    return {"rate": spread(rates)} | ({"cpu": spread(cpu)} if cpu else {})


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest value."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}
