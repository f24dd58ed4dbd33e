"""Groups for a trainer's steps, each once in the weights that survive.

A group is acknowledged when a checkpoint that holds it is durable, not after its step: a crash
throws the weights back to the last checkpoint, and what was acknowledged since would be lost. The
journal says which groups a checkpoint holds, so that one that is delivered again between a
checkpoint and its acknowledgement is not trained twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.models import TrajectoryGroup
from hermes_queue.results.blocking import HeldGroup, consume_sync
from hermes_queue.results.consume import remove_consumer_group
from hermes_queue.results.filters import GroupFilter
from hermes_queue.trainers.journal import StepJournal
from hermes_queue.trainers.rows import RowRefused
from hermes_queue.trainers.sources.acks import OwedAcks
from hermes_queue.trainers.sources.expected import ExpectedRun
from hermes_queue.trainers.sources.lease import ReaderLease
from hermes_queue.trainers.sources.left_out import count_left_out
from hermes_queue.trainers.sources.options import FeedCounts, FeedOptions
from hermes_queue.trainers.sources.pace import TrainerPace
from hermes_queue.trainers.sources.policy import RunVersion
from hermes_queue.trainers.sources.window import Age, Waiting, Window

logger = logging.getLogger(__name__)

_CONSUMER = "trainer"
"""The same after a restart: the groups that the trainer held come first."""
_MAX_DELIVERIES = 10**9
"""No bound: a trainer that fails at each start is restarted a thousand times in a night."""
_NO_CHECKPOINT = -1
_FILL_S = 0.1
"""Longest pause between two groups that are at hand; then the window stays as full as it is."""
_POLL_S = 1.0


class Feed:
    """Groups of one run for one trainer process. Close it, or use it in a `with` statement.

    Only complete groups, never of an evaluation. Not thread-safe: use it from one thread at a time.

    Args:
        name: name of the consumer group, which no other process reads.
        check: called with every group before it is handed out, e.g. `rows_of` with the trainer's
            options; the groups for which it raises `RowRefused` become dead letters.
        **options: the other fields of `FeedOptions`.

    Raises:
        ConfigurationError: the journal belongs to a living process or is damaged, the consumer
            group is read by another process or exists with another filter, or the run was enqueued
            with another group size or temperature, or without the token ids that `check` needs.
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
        self._checks = [] if check is None else [check]
        self._needs_tokens = check is not None
        self._temperature = given.temperature
        self._window: Window[HeldGroup] = Window(given.window)
        self._held: dict[str, list[HeldGroup]] = {}
        """Deliveries by group, without records, until a checkpoint has the group; several after a
        power loss of Redis, which may publish a group twice."""
        self._waiting: set[str] = set()
        """Groups in the window."""
        self._is_finished = False
        self._came: HeldGroup | None = None
        """A delivery on its way into the window."""
        with ExitStack() as stack:
            self._journal = stack.enter_context(closing(StepJournal(given.directory)))
            self._saved = _NO_CHECKPOINT if self._journal.last_step is None else None
            """The last durable checkpoint; None until `resume` says it."""
            self._ledger = stack.enter_context(closing(Ledger.connect(url=given.url)))
            self._run = ExpectedRun(self._ledger, given, self.counts)
            self._check_run()
            self._run.note_unknown()
            lease = ReaderLease(self._ledger, name, self._journal.path)
            self._lease = stack.enter_context(closing(lease))
            self._policy = RunVersion(self._ledger, given.run)
            self._pace = TrainerPace(self._ledger, given)
            self._acks = OwedAcks(self._pace, self._journal)
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
                    on_filtered=self._note_filtered,
                )
            )
            stack.callback(self._acks.settle)
            self._acks.settle()  # sets the pace: what begins before that does not count
            self._open = stack.pop_all()

    @property
    def version(self) -> int | None:
        """The run's policy version when a group was last taken or a version published."""
        return self._policy.current

    def require(
        self,
        check: Callable[[TrajectoryGroup], object] | None = None,
        *,
        temperature: float | None = None,
        tokens: bool = False,
    ) -> None:
        """Add a check or a temperature, as the arguments of these names, before the first `take`.

        Args:
            check: as of the feed.
            temperature: as of the feed.
            tokens: whether groups without token ids are of no use, as if there were a check.

        Raises:
            ConfigurationError: the run was enqueued in another way.
        """
        if check is not None:
            self._checks.append(check)
        self._needs_tokens |= tokens or check is not None
        self._temperature = self._temperature if temperature is None else temperature
        self._check_run()

    def _check_run(self) -> None:
        self._run.check(temperature=self._temperature, needs_tokens=self._needs_tokens)

    def resume(
        self, step: int | None, *, kept: int | None = None, again: Sequence[str] = ()
    ) -> int:
        """Go on from the checkpoint of `step`; None without one. Call it before the first `take`.

        Groups of later steps are trained again, unless they are acknowledged: those of a
        checkpoint that `saved` reported are lost if it is given up for an earlier one.

        Args:
            step: of the checkpoint.
            kept: last step whose batch is not lost with this process: it is on the disk, or in
                weights of another process. Groups of steps up to it are not handed out again, and
                wait for `saved`.
            again: groups that come first when they are delivered again, in this order.

        Returns:
            The number of groups in the weights of that checkpoint, and in kept batches.
        """
        if self._held:
            raise RuntimeError("resume() comes before the first take()")
        saved = _NO_CHECKPOINT if step is None else step
        known = self._journal.resume(max(saved, _NO_CHECKPOINT if kept is None else kept))
        self._saved = saved
        self._window.expect(again)
        if step and not known:
            logger.warning(
                "%s: no group is known to be in the weights of step %d; groups that are in them "
                "and were not acknowledged will be trained again",
                *(self._journal.path, step),
                extra={"action": "journal_empty", "path": str(self._journal.path)},
            )
        return known

    def take(self, groups: int, *, timeout_s: float | None = None) -> list[HeldGroup]:
        """The next groups: as many as asked for, or none if `timeout_s` passes before.

        What has come until then stays here for the next call.

        Raises:
            ConfigurationError: the journal holds steps, and `resume` was not called; or another
                process reads the consumer group, because this one was silent for too long.
            HermesQueueError: as `consume`.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self._begin_take(groups)
        ready: list[Waiting[HeldGroup]] = []
        try:
            while len(ready) < groups:
                drawn = self._draw(until, more=groups - len(ready))
                # All of them again: while we waited, a new version may have made them stale.
                ready = [each for each in ready if self._is_fresh(each)]
                if drawn is None:
                    return []
                ready.append(drawn)
            return [self._hand_out(ready.pop(0)) for _ in range(groups)]
        finally:
            for each in ready:
                self._window.put_back(each)

    def _begin_take(self, groups: int) -> None:
        self._last_checkpoint()
        self._lease.check()
        self._pace.ask(groups)
        self._acks.settle(waits=True)

    def _draw(self, until: float | None, *, more: int) -> Waiting[HeldGroup] | None:
        """The group whose turn it is, young enough by now; None if none comes until then.

        Args:
            until: monotonic time; None = wait for ever.
            more: groups that will be drawn, so that the window chooses among all of them.
        """
        while self._fill(more, until):
            self._lease.check()  # again, since it may have waited for long
            if self.options.max_lag is not None:
                self._policy.refresh()
            drawn = self._window.take()
            if self._is_fresh(drawn):
                return drawn
            if until is not None and not self._window and time.monotonic() >= until:
                break
        return None

    def _hand_out(self, drawn: Waiting[HeldGroup]) -> HeldGroup:
        """Count a group that was drawn as taken."""
        self._waiting.discard(drawn.item.group_id)
        self._run.came()
        self.counts.taken += 1
        self.counts.stale += self._is_stale(drawn.age)
        self.counts.policy_unknown += not drawn.age.certain
        return drawn.item

    def note_longest(self, group: TrajectoryGroup) -> None:
        """Count the tokens of a group that is trained with the longest sequences alone.

        Raises:
            RowRefused: as `rows_of`.
        """
        count_left_out(group, self.counts)

    def ready(self, groups: int, *, timeout_s: float) -> int:
        """Read until that many groups wait for `take`, or `timeout_s` passes; how many wait."""
        self._begin_take(groups)
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
        self._acks.reject(self._held[group.group_id], refusal)
        self.counts.refused[refusal.reason] += 1
        del self._held[group.group_id]
        self._acks.settle()

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
        self._pace.off(*names)

    def saved(self, step: int) -> None:
        """Acknowledge the groups in the checkpoint of `step`, which is durable now.

        If checkpoints are written in the background, call it when one is complete, even if later
        steps were trained since. If Redis does not answer, a later call acknowledges them.
        """
        self._saved = saved = max(step, self._last_checkpoint())
        steps = self._journal.steps
        done = [name for name in self._held if name in steps and steps[name] <= saved]
        for name in done:
            self._acks.owe(*self._held.pop(name))
            self.counts.saved += 1
        self._acks.settle()

    def published(self, version: int) -> int:
        """Report that new weights are live, which the trainer numbers `version`.

        The run's policy version never goes back: if the trainer counts from the beginning again,
        or from a checkpoint, what it says from then on is shifted upwards.

        Returns:
            The run's policy version now.

        Raises:
            RedisUnavailable, RedisFull: the version may or may not be set; repeat the call.
        """
        numbered = self.numbered(version)
        self._policy.set(version, numbered)
        self._acks.settle()
        return numbered

    def numbered(self, version: int) -> int:
        """The policy version that `published(version)` will set; for weights named by it.

        Raises:
            RedisUnavailable: call it again.
        """
        return self._policy.numbered(version)

    def close(self) -> None:
        """End reading. Groups without a checkpoint are delivered again. Idempotent."""
        self._open.close()

    def finish(self) -> None:
        """End the training for good, and close: results wait for this feed no longer.

        Its consumer group is removed, and the run's pace if it followed this feed. Idempotent.

        Raises:
            ConfigurationError: another process reads the consumer group.
            ValueError: the weights hold groups that no checkpoint has; report it with `saved`.
            RedisUnavailable: call it again.
        """
        if self._is_finished:
            return
        self._lease.check()
        steps = self._journal.steps
        if unsaved := [steps[name] for name in self._held if name in steps]:
            raise ValueError(
                f"step {max(unsaved)} is trained and in no checkpoint that saved() reported: "
                "save the weights first"
            )
        self._acks.drop()
        self._stream.close()
        with explained(self._ledger.url):
            remove_consumer_group(self._ledger.client, self._ledger.prefix, self.options.name)
        self._pace.end()
        self._is_finished = True
        self.close()

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
            self._came = self._came or self._stream.next_within(pause_s)
            if self._came is not None:
                self._admit(self._came)
                self._came = None
                continue
            self._acks.settle(waits=True)
            if not enough:
                self._run.waited(pause_s, needed=needed, at_hand=len(self._window))
            if enough or (until is not None and time.monotonic() >= until):
                return enough
        return True

    def _admit(self, group: HeldGroup) -> None:
        """Put a delivery into the window, unless the weights hold it or it is unfit."""
        # The run may have been unknown when we opened.
        self._run.check_once(temperature=self._temperature, needs_tokens=self._needs_tokens)
        name, bare = group.group_id, group.without_records()
        self._window.came(name)
        if name in self._held:
            self._held[name].append(bare)
            return
        if (step := self._journal.steps.get(name)) is not None:
            self.counts.recognised += 1
            self._pace.off(name)
            if step > self._last_checkpoint():
                self._held[name] = [bare]  # of a kept batch, see `resume`
            else:
                self._acks.owe(bare)
            self._acks.settle()
            return
        try:
            if group.size != (size := self.options.group_size):
                raise RowRefused("group_size", f"a group of {group.size}, not {size}")
            for check in self._checks:
                check(group)
        except RowRefused as refusal:
            self._acks.insist_on_rejecting(bare, refusal)
            self.counts.refused[refusal.reason] += 1
            return
        self._held[name] = [bare]
        self._waiting.add(name)
        self._window.add(group, Age.of(group, begun=self.options.age == "begun"), name)

    def _note_filtered(self, fields: Mapping[str, str]) -> None:
        """Count what the consumer group's filter leaves out because of its scores alone."""
        self.counts.equal += GroupFilter(
            self.options.run, self.options.env or None, complete=True
        ).takes(fields)

    def _is_stale(self, age: Age) -> bool:
        bound, lag = self.options.max_lag, age.lag(self._policy.current)
        return bound is not None and lag is not None and lag > bound

    def _is_fresh(self, waiting: Waiting[HeldGroup]) -> bool:
        """Whether a group that was drawn may be handed out; else it is dropped."""
        if self.options.on_stale == "train" or not self._is_stale(waiting.age):
            return True
        name = waiting.item.group_id
        self.counts.dropped += 1
        self._waiting.discard(name)
        self._acks.owe(*self._held.pop(name, ()))
        self._pace.off(name)
        self._acks.settle()
        return False
