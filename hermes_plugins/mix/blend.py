"""The sequence of groups of a mix: which source comes next, and which of its rows.

Sources are chosen by weighted fair queueing: each has a virtual time that a group moves on by 1
(or by its number of trajectories) divided by the weight, and the source that is furthest behind
comes next. So shares hold over any stretch of groups, without chance. A source that was paused, or
is new, begins at the time of the others: it has nothing to catch up with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_plugins.mix.document import ByPassRate
from hermes_plugins.mix.known import Measured, PassRates
from hermes_plugins.mix.samplers import RowSampler, make_sampler
from hermes_plugins.mix.sources import MixSource
from hermes_plugins.mix.state import DrawnGroup, MixState, SourceState
from hermes_plugins.mix.tuning import LiveSettings
from hermes_queue.models import TrajectoryJob

Standing = Literal["active", "paused", "weight 0", "quota", "done", "nothing to learn"]
RECHECK_S = 30.0
"""Time after which a source of which no row was worth drawing is looked at again."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group that was drawn."""

    drawn: DrawnGroup
    jobs: list[TrajectoryJob]
    items: Mapping[str, bytes]
    """Rows and programs that its jobs name by hash."""


class Blend:
    """Draws groups, and moves a state on: the same from the same state, rows and settings."""

    def __init__(
        self,
        sources: Mapping[str, MixSource],
        state: MixState,
        *,
        seed: int,
        share: Literal["groups", "trajectories"],
        rates: PassRates,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources, self.state = sources, state
        self._by_jobs, self._rates, self._clock = share == "trajectories", rates, clock
        self._settings = LiveSettings(0, 1)
        self._samplers: dict[str, RowSampler] = {}
        self._idle: dict[str, float] = {}
        for name, source in sources.items():
            of_source = state.sources.setdefault(name, SourceState(time=state.clock))
            self._samplers[name] = make_sampler(
                seed, name, source.table, source.items, of_source, self._asking(source)
            )

    def heed(self, settings: LiveSettings) -> None:
        """Go on with these settings; a changed weight counts from now on."""
        self._settings = settings
        for name, each in settings.sources.items():
            state = self.state.sources[name]
            if each.weight != state.weight:
                ahead = max(0.0, state.time - self.state.clock)
                if each.weight > 0 and state.weight > 0:
                    ahead *= state.weight / each.weight
                if each.weight > 0:
                    state.time, state.weight = self.state.clock + ahead, each.weight

    def standing(self, name: str) -> Standing:
        """What a source is doing."""
        settings, state = self._settings.sources[name], self.state.sources[name]
        if self._samplers[name].over:
            return "done"
        if _spent(settings.items, state.items, 1) or _spent(
            settings.trajectories, state.jobs, self._sources[name].group_jobs
        ):
            return "quota"
        if settings.pause:
            return "paused"
        if settings.weight == 0:
            return "weight 0"
        if self._idle.get(name, -1.0) > self._clock():
            return "nothing to learn"
        return "active"

    @property
    def over(self) -> bool:
        """Whether no source will give anything any more, unless its settings change."""
        return all(self.standing(name) in ("done", "quota") for name in self._sources)

    def draw(self) -> Group | None:
        """The next group; None = there is none now.

        Raises:
            RedisUnavailable: the memory of tasks gave no answer; the state is then of no use.
        """
        states = self.state.sources
        while active := [name for name in self._sources if self.standing(name) == "active"]:
            now = self.state.clock
            # Those behind the clock have been idle, and catch nothing up.
            name = min(active, key=lambda each: max(now, states[each].time))
            found = self._samplers[name].next()
            if found is None:
                if not self._samplers[name].over:
                    self._idle[name] = self._clock() + RECHECK_S
                continue
            source, state = self._sources[name], states[name]
            jobs, items = source.jobs(found.index, found.step)
            self.state.clock = max(now, state.time)
            cost = len(jobs) if self._by_jobs else 1
            state.time = self.state.clock + cost / self._settings.sources[name].weight
            state.items, state.jobs = state.items + 1, state.jobs + len(jobs)
            digests = source.items.digests[found.index], source.items.contents[found.index]
            return Group((name, found.step, *digests), jobs, items)
        return None

    def again(self, pending: Sequence[DrawnGroup]) -> Iterator[Group | str]:
        """The groups of a batch that was drawn before; texts about those that have changed."""
        wanted: dict[str, set[int]] = {}
        for name, _, digest, _ in pending:
            wanted.setdefault(name, set()).add(digest)
        places = {
            (name, digest): place
            for name, digests in wanted.items()
            if name in self._sources
            for place, digest in enumerate(self._sources[name].items.digests)
            if digest in digests
        }
        for drawn in pending:
            name, step, digest, content = drawn
            place = places.get((name, digest))
            if place is None:
                yield f"sources.{name}: a row of the last batch is gone; it is left out"
                continue
            source = self._sources[name]
            if source.items.contents[place] != content:
                yield f"sources.{name}: {source.items[place].place}: has changed since it was drawn"
            yield Group(drawn, *source.jobs(place, step))

    def _asking(self, source: MixSource) -> Callable[[Sequence[int]], Sequence[Measured | None]]:
        table = source.table.sampler

        def rates(places: Sequence[int]) -> Sequence[Measured | None]:
            assert isinstance(table, ByPassRate)  # noqa: S101 - no other sampler asks
            hashes = [source.items.stored(place).sha256 for place in places]
            return self._rates.measured(
                source.plan.options.run.env,
                hashes,
                model=table.model or source.solver,
                policies=table.policies,
            )

        return rates


def _spent(quota: int | None, used: int, more: int) -> bool:
    return quota is not None and used + more > quota
