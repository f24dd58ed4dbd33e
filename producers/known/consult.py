"""The memory of tasks, asked for the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.poison import known_poison
from hermes_queue.ledger.tasks import Task, TaskMemory, solver_of
from hermes_queue.settings import RedisSettings
from producers.known.choose import ANY_MODEL, why_not
from producers.known.estimate import estimated, lane_slots, late
from producers.run.options import ProducerOptions
from producers.run.plan import Plan
from producers.run.selection import SelectedItems
from producers.source import SelectedItem

_SHOWN = 5


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
        return [why_not(task, self._options, self.model) for task in tasks]

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
        model = None if self.model == ANY_MODEL else self.model
        slots = lane_slots(self._ledger.workers(), self._plan.options.run.lane)
        found = estimated(list(of_size), model)
        if found.known or self._options.estimate:
            yield from found.lines(slots)
        limit_s = self._plan.limits.total_timeout_s
        named = zip((item.instance_id for item in selection.items), tasks, strict=True)
        if near := late(((name, task) for name, task in named if task), limit_s):
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
