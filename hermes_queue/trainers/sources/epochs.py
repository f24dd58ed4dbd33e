"""Further passes over recorded groups, each group once per pass in the weights that survive.

The stream is one pass. What it has delivered can be read again with `replay`, from Redis and from
the archive. There is nothing to acknowledge: the journal alone says what the weights hold. It has a
group of the second pass as `<group>@2`, so that this is no repetition of the first one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.models import TrajectoryGroup
from hermes_queue.trainers.journal import StepJournal
from hermes_queue.trainers.rows import MIN_STD, RowRefused
from hermes_queue.trainers.sources.options import FeedCounts

_MARK = "@"


class Epochs:
    """Passes over recorded groups for one trainer process, with the methods of a `Feed`.

    Only complete groups of `group_size`. Each pass has what is finished when it begins. Not
    thread-safe. Close it, or use it in a `with` statement.

    Args:
        groups: makes the groups of a pass, e.g. `functools.partial(replay, run="run-a")`.
        directory: of the journal: where the checkpoints are.
        group_size: groups of another size are refused.
        last: number of the last pass.
        first: number of the first one; 2 if a `Feed` of the same journal was the first.
        shuffle: groups to choose among by chance; 0 keeps their order.
        seed: of the choice, which differs from pass to pass.
        min_std: only groups whose scores have at least this standard deviation; None = all.
        check: as that of a `Feed`; groups for which it raises `RowRefused` are skipped.

    Raises:
        ConfigurationError: the journal belongs to a living process or is damaged.
    """

    def __init__(
        self,
        groups: Callable[[], Iterable[TrajectoryGroup]],
        *,
        directory: Path,
        group_size: int,
        last: int,
        first: int = 1,
        shuffle: int = 0,
        seed: int = 0,
        min_std: float | None = MIN_STD,
        check: Callable[[TrajectoryGroup], object] | None = None,
    ) -> None:
        if not 1 <= first <= last:
            raise ValueError(f"passes from {first} to {last}")
        self.counts = FeedCounts()
        self.epoch = first
        """Number of the pass that the last groups were taken from."""
        self._groups = groups
        self._last = last
        self._choice = (shuffle, seed)
        self._filter = (group_size, min_std, check)
        self._taken: dict[str, str] = {}
        """Names in the journal of groups that were taken and not trained, by id."""
        self._rest: Iterator[TrajectoryGroup] | None = None
        self._journal = StepJournal(directory)
        self._saved = -1 if self._journal.last_step is None else None

    def resume(self, step: int | None) -> int:
        """Go on from the checkpoint of `step`, None without one. As `Feed.resume`."""
        if self._rest is not None:
            raise RuntimeError("resume() comes before the first take()")
        saved = -1 if step is None else step
        known = self._journal.resume(saved)
        self._saved = saved
        # A pass begins when all groups of the one before were taken, though not all trained.
        newest = max((_epoch_of(name) for name in self._journal.steps), default=1)
        self.epoch = min(max(self.epoch, newest - 1), self._last)
        return known

    def take(self, groups: int, *, timeout_s: float | None = None) -> list[TrajectoryGroup]:
        """The next groups of this pass: fewer at its end, none after the last one.

        Nothing is waited for, so `timeout_s` has no effect.

        Raises:
            ConfigurationError: the journal holds steps, and `resume` was not called; or a group
                comes again before it was trained in the pass before.
            HermesQueueError: as `replay`.
        """
        if self._saved is None:
            raise ConfigurationError(f"{self._journal.path} holds steps: call resume()")
        while True:
            if self._rest is None:
                self._rest = self._pass()
            found = list(itertools.islice(self._rest, groups))
            if found or self.epoch == self._last:
                break
            self.epoch, self._rest = self.epoch + 1, None
        for group in found:
            if group.group_id in self._taken:
                raise ConfigurationError(
                    f"group {group.group_id} comes in pass {self.epoch} before it was trained in "
                    "the one before: there are fewer groups than are taken ahead"
                )
            self._taken[group.group_id] = self._name(group)
        self.counts.taken += len(found)
        return found

    def trained(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Record that the weights after optimiser step `step` hold these groups. As `Feed`."""
        for group in groups:
            if group.group_id not in self._taken:
                raise ValueError(f"group {group.group_id} was not taken here, or is trained")
        if self._saved is None or step <= self._saved:
            raise ValueError(f"step {step} is not after the checkpoint of step {self._saved}")
        self._journal.add(step, [self._taken[group.group_id] for group in groups])
        for group in groups:
            del self._taken[group.group_id]
        self.counts.trained += len(groups)

    def refuse(self, group: TrajectoryGroup, refusal: RowRefused) -> None:
        """Give a group up that was taken and cannot be trained; a later pass has it again."""
        if self._taken.pop(group.group_id, None) is None:
            raise ValueError(f"group {group.group_id} was not taken here, or is trained")
        self.counts.refused[refusal.reason] += 1

    def saved(self, step: int) -> None:
        """Report that the checkpoint of `step` is durable."""
        self._saved = max(step, self._saved if self._saved is not None else step)

    def published(self, version: int) -> int:
        """Return `version`: nothing samples with these weights."""
        return version

    def close(self) -> None:
        """Release the journal. Idempotent."""
        self._journal.close()

    def __enter__(self) -> Epochs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name(self, group: TrajectoryGroup) -> str:
        return group.group_id if self.epoch == 1 else f"{group.group_id}{_MARK}{self.epoch}"

    def _pass(self) -> Iterator[TrajectoryGroup]:
        """The fit groups of this pass that the weights do not hold."""
        size, seed = self._choice
        chance: Any = random.Random(f"{seed}.{self.epoch}")  # noqa: S311 - an order, not a secret
        buffer: list[TrajectoryGroup] = []
        for group in self._groups():
            if self._name(group) in self._journal.steps:
                self.counts.recognised += 1
            elif self._is_fit(group):
                buffer.append(group)
                if len(buffer) > size:
                    yield buffer.pop(chance.randrange(len(buffer)) if size else 0)
        while buffer:
            yield buffer.pop(chance.randrange(len(buffer)) if size else 0)

    def _is_fit(self, group: TrajectoryGroup) -> bool:
        group_size, min_std, check = self._filter
        if not group.complete or (min_std is not None and (group.std or 0.0) < min_std):
            return False
        try:
            if group.size != group_size:
                raise RowRefused("group_size", f"a group of {group.size}, not {group_size}")
            if check is not None:
                check(group)
        except RowRefused as refusal:
            self.counts.refused[refusal.reason] += 1
            return False
        return True


def _epoch_of(name: str) -> int:
    _, _, epoch = name.rpartition(_MARK)
    return int(epoch) if _MARK in name and epoch.isdigit() else 1
