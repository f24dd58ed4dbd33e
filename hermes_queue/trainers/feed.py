"""Groups for a trainer's steps, each once in the weights that survive.

A group is acknowledged when a checkpoint that holds it is durable, not after its step: a crash
throws the weights back to the last checkpoint, and what was acknowledged since would be lost. The
journal says which groups a checkpoint holds, so that one that is delivered again between a
checkpoint and its acknowledgement is not trained twice.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.policy import set_version, version_of
from hermes_queue.models import Name, TrajectoryGroup
from hermes_queue.results.blocking import HeldGroup, consume_sync
from hermes_queue.trainers.journal import StepJournal
from hermes_queue.trainers.rows import MIN_STD, RowRefused
from hermes_queue.trainers.window import Age, Waiting, Window

logger = logging.getLogger(__name__)

_CONSUMER = "trainer"
"""The same after a restart: the groups that the trainer held come first."""
_MAX_DELIVERIES = 1000
"""Every restart of the trainer delivers what it held again, which does not make it poisonous."""
_NO_CHECKPOINT = -1
_FILL_S = 0.1
"""Longest pause between two groups that are at hand; then the window stays as full as it is."""
_POLL_S = 1.0


class FeedOptions(BaseModel):
    """What a feed takes, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    """Name of the consumer group, which no other process reads."""
    run: Name
    directory: Path
    """Of the journal: where the checkpoints are."""
    group_size: int = Field(ge=1)
    """Groups of another size are refused."""
    env: str | None = None
    max_lag: int | None = Field(default=None, ge=0)
    """Policy versions by which a group may be behind when it is taken; None = no bound."""
    on_stale: Literal["drop", "train"] = "drop"
    """What happens beyond `max_lag`; `train` is for losses that correct it, and only counts."""
    window: int = Field(default=0, ge=0)
    """Groups to hold back in memory and hand out by age; 0 keeps the order of the stream."""
    min_std: float | None = MIN_STD
    """Only groups whose scores have at least this standard deviation; None = all."""
    url: str | None = None
    """Redis; default `HERMES_QUEUE_REDIS_URL`."""


@dataclass(slots=True)
class FeedCounts:
    """Groups of this process so far, by outcome."""

    taken: int = 0
    """Handed to the trainer."""
    trained: int = 0
    """In the journal."""
    saved: int = 0
    """In a durable checkpoint, hence acknowledged."""
    recognised: int = 0
    """Delivered again though the weights hold them: acknowledged, not handed out."""
    dropped: int = 0
    """Older than `max_lag`: acknowledged, not handed out."""
    stale: int = 0
    """Older than `max_lag`, and handed out."""
    policy_unknown: int = 0
    """Handed out although nobody knows the age of a member."""
    refused: Counter[str] = field(default_factory=Counter)
    """Unfit, now dead letters, by reason."""


class Feed:
    """Groups of one run for one trainer process. Close it, or use it in a `with` statement.

    Only complete groups, never of an evaluation. Not thread-safe: use it from one thread at a time.

    Args:
        name: name of the consumer group, which no other process reads.
        check: called with every group before it is handed out, e.g. `rows_of` with the trainer's
            options; the groups for which it raises `RowRefused` become dead letters.
        **options: the other fields of `FeedOptions`.

    Raises:
        ConfigurationError: the journal belongs to a living process or is damaged, or the consumer
            group exists with another filter.
        RedisUnavailable: Redis cannot be reached; later outages are waited out.
    """

    def __init__(
        self,
        name: str,
        *,
        check: Callable[[TrajectoryGroup], object] | None = None,
        **options: Any,
    ) -> None:
        self.options = given = FeedOptions(name=name, **options)
        self.counts = FeedCounts()
        self._check = check
        self._window: Window[HeldGroup] = Window(given.window)
        self._held: dict[str, list[HeldGroup]] = {}
        """Deliveries by group, without records, until a checkpoint has the group; several after a
        power loss of Redis, which may publish a group twice."""
        self._waiting: set[str] = set()
        """Groups in the window."""
        self._owed: list[HeldGroup] = []
        """Deliveries to acknowledge as soon as Redis answers."""
        self._version: int | None = None
        self._offset: int | None = None
        """What is added to the trainer's versions; None before the first one."""
        with ExitStack() as stack:
            self._journal = stack.enter_context(closing(StepJournal(given.directory)))
            self._saved = _NO_CHECKPOINT if self._journal.last_step is None else None
            """The last durable checkpoint; None until `resume` says it."""
            self._ledger = stack.enter_context(closing(Ledger.connect(url=given.url)))
            self._stream = stack.enter_context(
                consume_sync(
                    name,
                    url=given.url,
                    run=given.run,
                    env=given.env,
                    complete=True,
                    min_std=given.min_std,
                    consumer=_CONSUMER,
                    max_deliveries=_MAX_DELIVERIES,
                )
            )
            self._open = stack.pop_all()

    @property
    def version(self) -> int | None:
        """The run's policy version when a group was last taken or a version published."""
        return self._version

    def resume(
        self, step: int | None, *, kept: int | None = None, again: Sequence[str] = ()
    ) -> int:
        """Go on from the checkpoint of `step`; None without one. Call it before the first `take`.

        Groups of later steps are trained again, unless they are acknowledged: those of a
        checkpoint that `saved` reported are lost if it is given up for an earlier one.

        Args:
            step: of the checkpoint.
            kept: last step of weights that live on in another process. Groups of steps up to it
                are not handed out again, and wait for `saved`.
            again: groups that come first when they are delivered again, in this order.

        Returns:
            The number of groups in the weights.
        """
        if self._held:
            raise RuntimeError("resume() comes before the first take()")
        self._saved = _NO_CHECKPOINT if step is None else step
        self._window.expect(again)
        known = self._journal.resume(max(self._saved, _NO_CHECKPOINT if kept is None else kept))
        if step and not known:
            extra = {"action": "journal_empty", "path": str(self._journal.path)}
            logger.warning(
                "%s: no group is known to be in the weights of step %d; groups that are in them "
                "and were not acknowledged will be trained again",
                self._journal.path,
                step,
                extra=extra,
            )
        return known

    def take(self, groups: int, *, timeout_s: float | None = None) -> list[HeldGroup]:
        """The next groups: as many as asked for, or none if `timeout_s` passes before.

        What has come until then stays here for the next call.

        Raises:
            ConfigurationError: the journal holds steps, and `resume` was not called.
            HermesQueueError: as `consume`.
        """
        self._last_checkpoint()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self._settle()
        ready: list[Waiting[HeldGroup]] = []
        while len(ready) < groups:
            if not self._fill(groups - len(ready), until):
                for each in ready:
                    self._window.put_back(each)
                return []
            self._refresh_version()
            # All of them again: while we waited, a new version may have made them stale.
            ready = [each for each in [*ready, self._window.take()] if self._is_fresh(each)]
        for each in ready:
            self._waiting.discard(each.item.group_id)
            self.counts.taken += 1
            self.counts.stale += self._is_stale(each.age)
            self.counts.policy_unknown += not each.age.certain
        return [each.item for each in ready]

    def ready(self, groups: int, *, timeout_s: float) -> int:
        """Read until that many groups wait for `take`, or `timeout_s` passes; how many wait."""
        self._last_checkpoint()
        self._settle()
        self._fill(groups, time.monotonic() + timeout_s)
        return len(self._window)

    def refuse(self, group: TrajectoryGroup, refusal: RowRefused) -> None:
        """Give a group up that was taken and cannot be trained: it becomes a dead letter.

        Raises:
            ValueError: it was not taken here, or is trained already.
            RedisUnavailable: call it again; otherwise the group is delivered again.
        """
        self._require_taken([group.group_id])
        if group.group_id in self._journal.steps:
            raise ValueError(f"group {group.group_id} is trained already")
        self._reject(self._held[group.group_id], refusal)
        del self._held[group.group_id]

    def trained(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Record that the weights after optimiser step `step` hold these groups.

        Call it after the step, and before its checkpoint is begun.

        Raises:
            ValueError: a group that was not taken here or is trained already, or a step before
                the last one or not after the last checkpoint.
            HermesQueueError: the disk is full or failed, and nothing was recorded. Do not save
                these weights before a repetition succeeds.
        """
        names = [group.group_id for group in groups]
        self._require_taken(names)
        if step <= self._last_checkpoint():
            raise ValueError(f"step {step} is not after the checkpoint of step {self._saved}")
        self._journal.add(step, names)
        self.counts.trained += len(names)

    def saved(self, step: int) -> None:
        """Acknowledge the groups in the checkpoint of `step`, which is durable now.

        If checkpoints are written in the background, call it when one is complete, even if later
        steps were trained since. If Redis does not answer, a later call acknowledges them.
        """
        self._saved = saved = max(step, self._last_checkpoint())
        steps = self._journal.steps
        done = [name for name in self._held if name in steps and steps[name] <= saved]
        for name in done:
            self._owed += self._held.pop(name)
            self.counts.saved += 1
        self._settle()

    def published(self, version: int) -> int:
        """Report that new weights are live, which the trainer numbers `version`.

        The run's policy version never goes back: if the trainer counts from the beginning again,
        or from a checkpoint, what it says from then on is shifted upwards.

        Returns:
            The run's policy version now.

        Raises:
            RedisUnavailable: the version may or may not be set; repeat the call.
        """
        before = version_of(self._ledger, self.options.run)
        first = self._offset is None
        offset = self._offset or 0
        if before is not None and (version + offset < before or (first and version <= before)):
            offset = before + 1 - version
        set_version(self._ledger, self.options.run, version + offset)
        self._offset, self._version = offset, version + offset
        return version + offset

    def close(self) -> None:
        """End reading. Groups without a checkpoint are delivered again. Idempotent."""
        self._open.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_checkpoint(self) -> int:
        if self._saved is None:
            raise ConfigurationError(
                f"{self._journal.path} holds steps up to {self._journal.last_step}: call resume() "
                "with the step of the checkpoint that the trainer goes on from, None without one"
            )
        return self._saved

    def _require_taken(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._held or name in self._waiting:
                raise ValueError(f"group {name} was not taken from this feed, or is saved already")

    def _fill(self, needed: int, until: float | None) -> bool:
        """Read on until `needed` groups wait, and all that are at hand up to the window's size."""
        while self._window.awaits() or len(self._window) < max(needed, self.options.window):
            enough = len(self._window) >= needed and not self._window.awaits()
            pause_s = _FILL_S if enough else _POLL_S
            if until is not None:
                pause_s = max(0.0, min(pause_s, until - time.monotonic()))
            group = self._stream.next_within(pause_s)
            if group is not None:
                self._admit(group)
                continue
            self._settle()
            if enough or (until is not None and time.monotonic() >= until):
                return enough
        return True

    def _admit(self, group: HeldGroup) -> None:
        """Put a delivery into the window, unless the weights hold it or it is unfit."""
        name, bare = group.group_id, group.without_records()
        self._window.came(name)
        if name in self._held:
            self._held[name].append(bare)
            return
        if name in self._journal.steps:
            self.counts.recognised += 1
            if self._journal.steps[name] > self._last_checkpoint():
                self._held[name] = [bare]  # in weights that live on, see `resume`
                return
            self._owed.append(bare)
            self._settle()
            return
        try:
            if group.size != self.options.group_size:
                raise RowRefused(
                    "group_size", f"a group of {group.size}, not {self.options.group_size}"
                )
            if self._check is not None:
                self._check(group)
        except RowRefused as refusal:
            self._insist_on_rejecting(bare, refusal)
            return
        self._held[name] = [bare]
        self._waiting.add(name)
        self._window.add(group, Age.of(group), name)

    def _is_stale(self, age: Age) -> bool:
        bound, lag = self.options.max_lag, age.lag(self._version)
        return bound is not None and lag is not None and lag > bound

    def _is_fresh(self, waiting: Waiting[HeldGroup]) -> bool:
        """Whether the group may be handed out; else it is dropped."""
        if self.options.on_stale == "train" or not self._is_stale(waiting.age):
            return True
        name = waiting.item.group_id
        self.counts.dropped += 1
        self._waiting.discard(name)
        self._owed += self._held.pop(name)
        self._settle()
        return False

    def _refresh_version(self) -> None:
        if self.options.max_lag is None:
            return
        try:
            self._version = version_of(self._ledger, self.options.run)
        except RedisUnavailable as error:
            logger.warning("policy version unknown: %s", error, extra={"action": "redis_wait"})

    def _settle(self) -> None:
        """Acknowledge what is owed; what Redis does not take stays owed."""
        try:
            while self._owed:
                self._owed[-1].ack()
                self._owed.pop()
        except RedisUnavailable as error:
            logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})

    def _insist_on_rejecting(self, group: HeldGroup, refusal: RowRefused) -> None:
        while True:
            try:
                self._reject([group], refusal)
                return
            except RedisUnavailable as error:
                logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
                time.sleep(_POLL_S)

    def _reject(self, deliveries: Sequence[HeldGroup], refusal: RowRefused) -> None:
        for each in deliveries:
            each.reject(f"trainer: {refusal.reason}: {refusal}"[:500])
        self.counts.refused[refusal.reason] += 1
