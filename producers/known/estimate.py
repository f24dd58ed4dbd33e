"""How long a run will take and what it will cost, by what is remembered of its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_queue.ledger.tasks import Task

_NEAR = 0.8
"""Part of a deadline that a task should not come near."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Sums over a run's trajectories; those of unknown tasks count like the mean of known ones."""

    trajectories: int
    known: int
    """Trajectories whose task is remembered with a time."""
    slot_seconds: float
    cost_usd: float | None
    """None if no cost is remembered."""
    passes: float | None
    """Mean pass rate; None if nothing was scored."""

    def lines(self, slots: int) -> Iterator[str]:
        """For people; `slots` serve the run's lane."""
        if not self.known:
            yield "estimate: nothing is remembered of the times of these tasks"
            return
        text = (
            f"estimate, by {self.known} of {self.trajectories} trajectories whose tasks are "
            f"remembered: {_duration(self.slot_seconds)} of slot time"
        )
        if slots:
            text += f", {_duration(self.slot_seconds / slots)} with the {slots} slots of the lane"
        if self.cost_usd is not None:
            text += f", {self.cost_usd:.2f} USD"
        if self.passes is not None:
            text += f", pass rate {self.passes:.2f}"
        yield text


def estimated(tasks: Sequence[tuple[Task | None, int]], model: str | None) -> Estimate:
    """Of tasks with their numbers of trajectories; `model` as in `Task.rate_of`."""
    total = sum(count for _, count in tasks)
    times = [(task.seconds_of(model), n) for task, n in tasks if task]
    costs = [(task.cost_usd / task.priced, n) for task, n in tasks if task and task.priced]
    rates = [(task.rate_of(model).pass_rate, n) for task, n in tasks if task]
    seconds, cost = _mean(times), _mean(costs)
    return Estimate(
        trajectories=total,
        known=sum(n for value, n in times if value is not None),
        slot_seconds=(seconds or 0.0) * total,
        cost_usd=None if cost is None else cost * total,
        passes=_mean(rates),
    )


def late(tasks: Iterable[tuple[str, Task]], limit_s: float) -> list[str]:
    """Those (by name) that come near a deadline: mean time and two deviations."""
    near = []
    for name, task in tasks:
        mean, std = task.seconds.mean, task.seconds.std
        if mean is not None and mean + 2 * (std or 0.0) > _NEAR * limit_s:
            near.append(name)
    return near


def lane_slots(workers: Iterable[Mapping[str, Any]], lane: str) -> int:
    """Slots of live workers (`Ledger.workers`) that serve a lane."""
    return sum(each.get("slots", 0) for each in workers if lane in each.get("lanes", ()))


def _duration(seconds: float) -> str:
    """A time for people."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _mean(values: Iterable[tuple[float | None, int]]) -> float | None:
    """Mean of values with their counts; None without any."""
    known = [(value, count) for value, count in values if value is not None]
    total = sum(count for _, count in known)
    return sum(value * count for value, count in known) / total if total else None
