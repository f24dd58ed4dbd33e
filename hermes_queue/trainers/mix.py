"""Groups of several runs or envs for one trainer, in the proportion of their weights.

Each source is a feed with a consumer group of its own. All of them share one journal: its line of a
step names the groups of all sources, so that a checkpoint holds either all of them or none. The
acknowledgements that follow may be interrupted anywhere, since the journal recognises the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.models import TrajectoryGroup
from hermes_queue.results.blocking import HeldGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.journal import StepJournal
from hermes_queue.trainers.rows import RowRefused
from hermes_queue.trainers.sources.options import FeedCounts, Shared
from hermes_queue.trainers.sources.window import Waiting

_POLL_S = 0.2
"""Wait for one source while none has a group."""

Drawn = tuple["_Source", Waiting[HeldGroup]]


@dataclass(slots=True)
class _Source:
    """A feed and its turn."""

    feed: Feed
    weight: float
    credit: float = 0.0
    """What it is owed, in weights."""
    is_dry: bool = False
    """Whether it was waited for in vain, and nothing has come since."""


class Mix:
    """Groups of several sources. Close it, or use it in a `with` statement.

    It has the methods of a `Feed` that a training loop calls, with the same contracts.

    The order is a smooth weighted round robin, e.g. a b a for the weights 2 and 1. A source whose
    turn it is and that has no group is waited for once; then the others take its turns until it
    delivers again. By then it is owed one round at most. Not thread-safe.

    Args:
        name: of the trainer; the consumer groups are `<name>.<source>`.
        sources: by name, the weight, or options of `Feed` with a `weight`. The run is named as the
            source unless `run` says otherwise.
        patience_s: longest wait for a source while others may have groups.
        check: as that of a `Feed`, for all sources that have none.
        **options: options of `Feed` for all sources; `pace` counts the groups of all of them.

    Raises:
        ConfigurationError: as `Feed`, or two sources would deliver the same groups.
        RedisUnavailable: as `Feed`.
    """

    def __init__(
        self,
        name: str,
        sources: Mapping[str, float | Mapping[str, Any]],
        *,
        directory: Path,
        patience_s: float = 5.0,
        check: Callable[[TrajectoryGroup], object] | None = None,
        pace: bool | int = False,
        **options: Any,
    ) -> None:
        if pace is not False and pace < 1:
            raise ConfigurationError("pace: is the number of groups of a step, or True")
        given = {key: _options(key, value) for key, value in sources.items()}
        weights = {key: _weight(key, each.pop("weight", 1)) for key, each in given.items()}
        _refuse_overlap({**options, **each} for each in given.values())
        self._patience_s = patience_s
        self._pace = pace
        self._asked = 0
        readers: dict[str, list[str]] = {}
        for key, each in given.items():
            readers.setdefault(each["run"], []).append(f"{name}.{key}")
        with ExitStack() as stack:
            self._journal = stack.enter_context(closing(StepJournal(directory)))
            shared = Shared(self._journal, readers)
            common = {"check": check, "pace": pace is not False, "directory": directory, **options}
            self._sources = [
                _Source(
                    stack.enter_context(
                        Feed(f"{name}.{key}", shared=shared, **{**common, **given[key]})
                    ),
                    weights[key],
                )
                for key in given
            ]
            self._open = stack.pop_all()
        self.feeds: Mapping[str, Feed] = dict(
            zip(given, (source.feed for source in self._sources), strict=True)
        )
        """The feed of each source, to look at its counts and options."""
        self._total = sum(weights.values())
        if pace is not False and pace is not True:
            for source, groups in self._shares():
                source.feed.expect(groups)

    @property
    def version(self) -> int | None:
        """The newest policy version of the runs, as `Feed.version`."""
        versions = [source.feed.version for source in self._sources]
        return max((each for each in versions if each is not None), default=None)

    @property
    def counts(self) -> FeedCounts:
        """The counts of all sources together."""
        found = FeedCounts()
        for each in (source.feed.counts for source in self._sources):
            for name in FeedCounts.__slots__:
                setattr(found, name, getattr(found, name) + getattr(each, name))
        return found

    def resume(self, step: int | None) -> int:
        """Go on from the checkpoint of `step`. As `Feed.resume`, for all sources together."""
        return [source.feed.resume(step) for source in self._sources][-1]

    def take(self, groups: int, *, timeout_s: float | None = None) -> list[HeldGroup]:
        """The next groups. As `Feed.take`, in the proportion of the weights."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self._asked = groups
        self._begin_take()
        ready: list[Drawn] = []
        credits = [source.credit for source in self._sources]
        taken: list[HeldGroup] = []
        try:
            while len(ready) < groups:
                found = self._next(until)
                ready = self._fresh(ready)
                if found is None:
                    return []
                ready.append(found)
            taken += [source.feed.hand_out(drawn) for source, drawn in ready]
        finally:
            if not taken:
                for source, drawn in ready:
                    source.feed.put_back(drawn)
                for source, credit in zip(self._sources, credits, strict=True):
                    source.credit = credit
        return taken

    def trained(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Record that the weights after `step` hold these groups, of whichever source."""
        names: dict[str, list[str]] = {}
        for group in groups:
            names.setdefault(self._feed_of(group).options.name, []).append(group.group_id)
        for feed in self.feeds.values():
            feed.check_step(step)
        self._journal.add(step, [group.group_id for group in groups])
        for feed in self.feeds.values():
            feed.note_trained(names.get(feed.options.name, []))

    def refuse(self, group: TrajectoryGroup, refusal: RowRefused) -> None:
        """Give a group up that was taken and cannot be trained. As `Feed.refuse`."""
        self._feed_of(group).refuse(group, refusal)

    def saved(self, step: int) -> None:
        """Acknowledge the groups in the checkpoint of `step`, which is durable now."""
        for source in self._sources:
            source.feed.saved(step)

    def published(self, version: int) -> int:
        """Report that new weights are live. As `Feed.published`; all runs get the same version."""
        now = self.numbered(version)
        for source in self._sources:
            source.feed.published_at(version, now)
        return now

    def numbered(self, version: int) -> int:
        """The policy version that `published(version)` will set. As `Feed.numbered`."""
        return max(source.feed.numbered(version) for source in self._sources)

    def finish(self) -> None:
        """End the training for good, and close. As `Feed.finish`, for all sources."""
        for source in self._sources:
            source.feed.finish()
        self.close()

    def close(self) -> None:
        """End reading. Groups without a checkpoint are delivered again. Idempotent."""
        self._open.close()

    def __enter__(self) -> Mix:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _feed_of(self, group: TrajectoryGroup) -> Feed:
        for feed in self.feeds.values():
            if feed.has_taken(group.group_id):
                return feed
        raise ValueError(f"group {group.group_id} was not taken from this mix, or is saved already")

    def _begin_take(self) -> None:
        """Let each run be ahead by its share of a step, without sources that are dry."""
        for source, groups in self._shares():
            source.feed.begin_take(groups)

    def _shares(self) -> Iterator[tuple[_Source, int]]:
        """The groups of a step that each source may have to deliver."""
        step = self._asked if self._pace is True else max(self._asked, int(self._pace))
        flowing = [source for source in self._sources if not source.is_dry]
        total = sum(source.weight for source in flowing)
        for source in self._sources:
            run = source.feed.options.run
            mine = sum(each.weight for each in flowing if each.feed.options.run == run)
            # While all are dry, any of them may have to fill the step alone.
            share = mine / total if flowing else 1.0
            yield source, max(1, math.ceil(step * share))

    def _next(self, until: float | None) -> Drawn | None:
        """The group of the source whose turn it is; None if none has one until then."""
        while True:
            order = sorted(self._sources, key=lambda each: -(each.credit + each.weight))
            all_dry = all(source.is_dry for source in order)
            for source in order:
                now = time.monotonic()
                wait_s = _POLL_S / len(order) if all_dry else self._patience_s
                if source.is_dry and not all_dry:
                    wait_s = 0.0
                end = now + wait_s if until is None else min(until, now + wait_s)
                drawn = source.feed.draw(end)
                if drawn is not None:
                    source.is_dry = False
                    self._charge(source, 1)
                    return source, drawn
                if not source.is_dry and (until is None or end < until):
                    source.is_dry = True
                    self._begin_take()
            if until is not None and time.monotonic() >= until:
                return None

    def _fresh(self, ready: list[Drawn]) -> list[Drawn]:
        """Those that a version published meanwhile has not made too old; the others lose a turn."""
        for feed in {id(source.feed): source.feed for source, _ in ready}.values():
            feed.refresh()
        fresh = []
        for source, drawn in ready:
            if source.feed.is_fresh(drawn):
                fresh.append((source, drawn))
            else:
                self._charge(source, -1)
        return fresh

    def _charge(self, source: _Source, turns: int) -> None:
        """Count a turn of a source, or (-1) take it back."""
        for each in self._sources:
            turn = each.weight - (self._total if each is source else 0.0)
            each.credit = max(-self._total, min(self._total, each.credit + turns * turn))


def _options(key: str, value: float | Mapping[str, Any]) -> dict[str, Any]:
    given = dict(value) if isinstance(value, Mapping) else {"weight": value}
    return {"run": key, **given}


def _weight(key: str, value: Any) -> float:
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ConfigurationError(f"source {key!r}: the weight {value!r} is not a positive number")
    return float(value)


def _refuse_overlap(sources: Any) -> None:
    """Refuse sources of one run whose envs do not keep them apart."""
    seen: dict[str, set[str | None]] = {}
    for each in sources:
        envs = seen.setdefault(each["run"], set())
        env = each.get("env")
        if envs and (env is None or env in envs or None in envs):
            raise ConfigurationError(
                f"two sources of run {each['run']!r} would deliver the same groups: give each an "
                "env of its own"
            )
        envs.add(env)
    if not seen:
        raise ConfigurationError("a mix needs at least one source")
