"""The memory of tasks, asked for the rows of a run.

It says which of them are worth running, how long the run will take and what it will cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.poison import known_poison
from hermes_queue.ledger.tasks import Task, TaskMemory, solver_of
from hermes_queue.settings import RedisSettings
from producers.known.options import KnownOptions
from producers.run.options import ProducerOptions
from producers.run.plan import Plan
from producers.run.selection import SelectedItems
from producers.source import SelectedItem

_SHOWN = 5

_ANY_MODEL = "any"

_NEAR = 0.8
"""Part of a deadline that a task should not come near."""


class Consulted:
    """What is remembered of the rows of one run."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self._ledger, self._plan = ledger, plan
        self._options = plan.options.known
        self._tasks: dict[str, Task] = {}
        self.model = self._options.known_by or solver_of(plan.agent).model
        """Whose pass rates count."""

    def sift(self, items: Sequence[SelectedItem]) -> list[str | None]:
        """Why each row is left out; None = it is not."""
        tasks = self._read(items)
        return [_why_not(task, self._options, self.model) for task in tasks]

    def order(self, selection: SelectedItems) -> None:
        """Put the rows whose tasks took longest first; unknown ones count like the mean."""
        if not self._options.longest_first:
            return
        tasks = self._read(selection.items)
        times = [task.seconds_of(self.model) if task else None for task in tasks]
        known = [each for each in times if each is not None]
        mean = sum(known) / len(known) if known else 0.0
        places = sorted(range(len(times)), key=lambda n: -(mean if (t := times[n]) is None else t))
        selection.items[:] = [selection.items[n] for n in places]

    def notes(self, selection: SelectedItems) -> Iterator[str]:
        """What a person should know of the run before it begins."""
        tasks = self._read(selection.items)
        of_size = zip(tasks, map(self._plan.size_of, selection.items), strict=True)
        model = None if self.model == _ANY_MODEL else self.model
        slots = _lane_slots(self._ledger.workers(), self._plan.options.run.lane)
        found = _estimated(list(of_size), model)
        if found.known or self._options.estimate:
            yield from found.lines(slots)
        limit_s = self._plan.limits.total_timeout_s
        named = zip((item.instance_id for item in selection.items), tasks, strict=True)
        if near := _late(((name, task) for name, task in named if task), limit_s):
            yield (
                f"{len(near)} tasks need nearly all of --total-timeout {limit_s:g}: "
                f"{_some(near)}; raise it"
            )

    def _read(self, items: Sequence[SelectedItem]) -> list[Task | None]:
        hashes = [item.item_sha256 for item in items]
        env = self._plan.options.run.env
        missing = [each for each in hashes if each not in self._tasks]
        if missing:
            self._tasks |= TaskMemory(self._ledger).get_many(env, missing)
        return [self._tasks.get(each) for each in hashes]


def poison_note(ledger: Ledger, selection: SelectedItems) -> str | None:
    """A warning if rows are known to kill workers; None if none is, or nobody may say.

    Rows are hashed only if there is any poison item at all.
    """
    try:
        poison = known_poison(ledger)
    except RedisUnavailable:  # an older list of rights; enqueueing says if Redis is away
        return None
    if not poison:
        return None
    names = [item.instance_id for item in selection.items if item.item_sha256 in poison]
    if not names:
        return None
    return (
        f"workers died under {len(names)} of these rows ({_some(names)}): their jobs run alone, "
        "one after another; leave them out with --skip-deadly, or see hermes-queue dead items"
    )


@contextmanager
def consulted(plan: Plan) -> Iterator[Consulted | None]:
    """The memory, if a flag asks for it.

    Raises:
        ConfigurationError: there is none, because everything runs on this machine.
    """
    if not plan.options.known.asks:
        yield None
        return
    from hermes_queue.broker.embedded import should_embed  # Celery

    if should_embed(RedisSettings()):
        raise ConfigurationError(
            f"{_asking(plan.options)}: a run that is made on this machine alone remembers nothing "
            "of others; set HERMES_QUEUE_REDIS_URL"
        )
    ledger = Ledger.connect()
    try:
        yield Consulted(ledger, plan)
    finally:
        ledger.close()


def _asking(options: ProducerOptions) -> str:
    known = options.known
    flags = {
        "--skip-solved": known.skip_solved,
        "--skip-impossible": known.skip_impossible,
        "--pass-rate": known.pass_rate,
        "--skip-flaky": known.skip_flaky,
        "--skip-deadly": known.skip_deadly,
        "--longest-first": known.longest_first,
        "--estimate": known.estimate,
    }
    return next(name for name, value in flags.items() if value)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _why_not(task: Task | None, options: KnownOptions, model: str) -> str | None:
    """Why a task is left out; None if it is worth running, as every task is that is not known.

    Args:
        task: what is remembered of it.
        options: the flags.
        model: whose pass rate counts, see `Task.rate_of`; `_ANY_MODEL` = of all models together.
    """
    if task is None:
        return None
    if options.skip_deadly and task.deaths:
        return "workers died under it (--skip-deadly)"
    if options.skip_flaky and task.flips:
        return "its verdict has changed for the same answer (--skip-flaky)"
    rate = task.rate_of(None if model == _ANY_MODEL else model)
    known = rate.pass_rate
    if known is None or rate.scored < options.min_attempts:
        return None
    if options.skip_solved and known >= 1.0:
        return "it was always solved (--skip-solved)"
    if options.skip_impossible and known <= 0.0:
        return "it was never solved (--skip-impossible)"
    if options.pass_rate and not options.pass_rate[0] <= known <= options.pass_rate[1]:
        low, high = options.pass_rate
        return f"its pass rate is not between {low:g} and {high:g} (--pass-rate)"
    return None


@dataclass(frozen=True, slots=True)
class _Estimate:
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


def _estimated(tasks: Sequence[tuple[Task | None, int]], model: str | None) -> _Estimate:
    """Of tasks with their numbers of trajectories; `model` as in `Task.rate_of`."""
    total = sum(count for _, count in tasks)
    times = [(task.seconds_of(model), n) for task, n in tasks if task]
    costs = [(task.cost_usd / task.priced, n) for task, n in tasks if task and task.priced]
    rates = [(task.rate_of(model).pass_rate, n) for task, n in tasks if task]
    seconds, cost = _mean(times), _mean(costs)
    return _Estimate(
        trajectories=total,
        known=sum(n for value, n in times if value is not None),
        slot_seconds=(seconds or 0.0) * total,
        cost_usd=None if cost is None else cost * total,
        passes=_mean(rates),
    )


def _late(tasks: Iterable[tuple[str, Task]], limit_s: float) -> list[str]:
    """Those (by name) that come near a deadline: mean time and two deviations."""
    near = []
    for name, task in tasks:
        mean, std = task.seconds.mean, task.seconds.std
        if mean is not None and mean + 2 * (std or 0.0) > _NEAR * limit_s:
            near.append(name)
    return near


def _lane_slots(workers: Iterable[Mapping[str, Any]], lane: str) -> int:
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
