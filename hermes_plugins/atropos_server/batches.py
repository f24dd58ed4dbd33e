"""Batches for one trainer: handed out, handed out again, and acknowledged.

The groups of a batch stand in the journal under its step before the first byte leaves. Which of
these steps the weights hold is said by the trainer: by asking for the next batch, by a checkpoint
(`Durability`), and by `starting_step` when it registers again. A file beside the journal says what
the server must know after a crash: the trainer, what it has of which batch, and for good.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_plugins.atropos_server.options import AtroposServerOptions, Registration
from hermes_queue.disk.durable import make_directory
from hermes_queue.disk.locked import replacing
from hermes_queue.errors import ConfigurationError, HermesQueueError, RedisUnavailable
from hermes_queue.models import TrajectoryGroup
from hermes_queue.sinks.atropos.wire import Post, check_fits, convert
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.journal import StepJournal
from hermes_queue.trainers.sources.policy import announce

_REDIS_S = 1.0
_ASK_S = 0.25
"""How long a request for a batch may wait for groups."""
_SPARE_POSTS = 16
"""Converted groups to keep in memory beyond those of two batches."""
_ENV_ID = 0
_ABSENT = (
    "advantages",
    "ref_logprobs",
    "generation_params",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)
"""Fields of a group in the protocol that ours does not have."""

logger = logging.getLogger(__name__)

_FILE_NAME = "hermes_queue.atropos.json"


class Unfit(HermesQueueError):
    """The trainer and this server do not fit together."""


class InDoubt(HermesQueueError):
    """Nobody knows whether the trainer has the last batch, unless it says so."""


@dataclass(slots=True, eq=False)
class ServedBatch:
    """One batch. It is handed out in the same bytes until it has arrived."""

    step: int
    body: bytes
    delivered: bool = False
    trained: bool = False
    """Whether the trainer has asked for another one since."""
    latest: bytes = b""
    """Its last group."""


class TrainerBatches:
    """The batches of one trainer. Blocking; use it from one thread at a time.

    Only `delivered`, `lost` and `stop` may be called beside another call.

    Raises:
        ConfigurationError: the journal is damaged or in use, or the consumer group has another
            filter.
        RedisUnavailable: at the start; later outages are waited out.
    """

    def __init__(self, options: AtroposServerOptions, meter: SinkMeter) -> None:
        self.step = 0
        """Batches in the weights with which the trainer began, and those handed out since."""
        self.waiting = 0
        """Groups that are ready."""
        self.last: ServedBatch | None = None
        """The last batch, if this process handed it out."""
        self.counts: Counter[str] = Counter()
        """Of this process."""
        self._options = options
        self._meter = meter
        self._file = ProgressFile(options.directory)
        self._durability = Durability(options)
        self._posts: OrderedDict[str, Post] = OrderedDict()
        self._created: dict[int, list[tuple[float, ...]]] = {}
        """Creation times of the trajectories in each group of a step."""
        self._pulled = 0
        """Batches since the last answer that there is none."""
        self._published = 0
        self._in_doubt = False
        self._stopping = threading.Event()
        with closing(StepJournal(options.directory)) as journal:
            last = journal.last_step or 0
        self._feed = self._opened()
        try:
            self._go_on(last)
        except BaseException:
            self._feed.close()
            raise

    @property
    def progress(self) -> TrainerProgress:
        """What is known of the trainer."""
        return self._file.progress

    def register(self, registration: Registration) -> None:
        """A trainer begins, with weights that hold the batches up to its `starting_step`.

        Batches of later steps are handed out again. A trainer that does not resume starts at 0:
        everything that is not its for good is handed out again.

        Raises:
            Unfit: its batches cannot be made of groups, or it is ahead of everything handed out.
        """
        size, group_size = registration.batch_size, self._options.group_size
        if size % group_size:
            raise Unfit(
                f"batches of {size} sequences cannot be made of groups of {group_size}: choose a "
                "multiple, or start the server with another --group-size"
            )
        start = registration.starting_step
        if self.step and start > self.step:
            raise Unfit(
                f"starting_step is {start}, but only {self.step} batches were handed out: "
                f"{self._options.directory} belongs to another training; give this one a "
                "--directory and a --group of its own"
            )
        if start < self.progress.saved:
            extra: dict[str, Any] = {"action": "atropos_behind", "step": start}
            text = "the batches of steps %d to %d are acknowledged and not in the trainer's weights"
            logger.warning(text, start + 1, self.progress.saved, extra=extra)
        held = self._start_over(registration, start)
        self.counts["registrations"] += 1
        extra = {"action": "atropos_trainer", "step": start, "groups": held}
        text = "a trainer registered with weights of step %d, which hold %d groups: batches of %d"
        logger.info(text, start, held, size, extra=extra)

    def forget(self) -> None:
        """The trainer is gone (`/reset_data`). What is not its for good is handed out again."""
        self._start_over(None, 0)

    def ask(self) -> ServedBatch | None:
        """The trainer asks for a batch: the next one, or the last one if it has not arrived.

        Raises:
            InDoubt: see `--in-doubt`.
            HermesQueueError: the journal cannot be written; nothing was handed out.
        """
        if self._in_doubt:
            self._decide()
        if self.last is not None and not self.last.delivered:
            self.counts["again"] += 1
            return self.last
        if self.last is not None:
            self.last.trained = True
        if 0 < self._options.batches_per_pull <= self._pulled:
            self._pulled = 0
            return None
        self._settle(done=self.step)
        self._publish(self.step)
        batch = self._next()
        if batch is None:
            self._pulled = 0
        return batch

    def delivered(self, batch: ServedBatch) -> None:
        """The trainer's host has the whole batch."""
        if self.last is not batch or batch.delivered:
            return
        self._file.update(delivered=batch.step)
        batch.delivered = True
        self._pulled += 1

    def lost(self, batch: ServedBatch) -> None:
        """The trainer broke the connection of this batch, and has asked for none since."""
        if self.last is not batch or batch.trained:
            return
        batch.delivered = False
        self._pulled = 0
        self._file.update(delivered=batch.step - 1)
        extra = {"action": "atropos_torn", "step": batch.step}
        text = "the trainer broke the connection of the batch of step %d: it is handed out again"
        logger.warning(text, batch.step, extra=extra)

    def read_on(self, timeout_s: float) -> bool:
        """Prepare groups for the next batch, and look for checkpoints; False to go on reading."""
        registration = self.progress.registration
        if registration is None or self._in_doubt:
            return True
        self._settle(done=0)
        needed = registration.batch_size // self._options.group_size
        self.waiting = self._feed.ready(needed, timeout_s=timeout_s)
        return self.waiting >= needed

    def summary(self) -> dict[str, Any]:
        """All counters, and the last step."""
        totals = self.counts + self._counted(self._feed)
        return {"step": self.step, "saved": self.progress.saved, **dict(sorted(totals.items()))}

    def stop(self) -> None:
        """End waiting for Redis. May be called from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """End reading. What is not the trainer's for good is delivered again. Idempotent."""
        self._feed.close()

    def _go_on(self, last: int) -> None:
        """Continue where the last process stopped, whose journal ends with step `last`."""
        if self.progress.registration is None:
            return
        saved = self.progress.saved
        self.step = self._published = max(saved, last)
        # A trainer that pulls until there is none may have had its batch and not that answer.
        self._pulled = self._options.batches_per_pull
        self._feed.resume(saved, kept=last)
        # The journal is written before a batch leaves, and `delivered` after it has arrived.
        self._in_doubt = last > max(saved, self.progress.delivered)

    def _decide(self) -> None:
        """Whether the trainer has the last batch of a process that died while it handed it out."""
        extra = {"action": "atropos_in_doubt", "step": self.step}
        if self._options.in_doubt == "refuse":
            raise InDoubt(
                f"the server died while it handed out the batch of step {self.step}: restart the "
                "trainer from its checkpoint, so that it registers with the step that it has"
            )
        logger.warning("handing out step %d again, which may come twice", self.step, extra=extra)
        self.step -= 1
        again = self._reopen(self.step)
        self._feed.resume(self.progress.saved, kept=self.step, again=again)
        self._in_doubt = False

    def _start_over(self, registration: Registration | None, start: int) -> int:
        """Begin after step `start`; the number of groups that the weights hold."""
        self.last = None  # first: its connection may still be open, and report what it has
        again = self._reopen(max(start, self.progress.saved))
        held = self._feed.resume(start, again=again)
        self._file.begin(TrainerProgress(registration=registration, saved=start, delivered=start))
        self.step = self._published = start
        self._in_doubt, self._pulled = False, 0
        self._created.clear()
        return held

    def _opened(self) -> Feed:
        options = self._options
        return Feed(
            options.group,
            check=self._converted,
            run=options.run_id,
            env=options.env,
            directory=options.directory,
            group_size=options.group_size,
            max_lag=options.max_lag,
            on_stale=options.on_stale,
            min_std=options.min_std or None,
            url=options.redis_url,
        )

    def _reopen(self, step: int) -> list[str]:
        """Open another feed; the groups that were handed out after `step`, in that order."""
        self._feed.close()
        self.counts += self._counted(self._feed)
        with closing(StepJournal(self._options.directory)) as journal:
            again = [name for name, at in journal.steps.items() if at > step]
        self.waiting = 0
        while True:
            try:
                self._feed = self._opened()
                return again
            except RedisUnavailable as error:
                logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
                if self._stopping.wait(_REDIS_S):
                    raise

    @staticmethod
    def _counted(feed: Feed) -> Counter[str]:
        counts = feed.counts
        found = Counter(recognised=counts.recognised, dropped=counts.dropped, stale=counts.stale)
        return found + Counter({f"refused_{k}": number for k, number in counts.refused.items()})

    def _converted(self, group: TrajectoryGroup) -> Post:
        """The group as it is sent.

        Raises:
            RowRefused: it is unfit.
        """
        options = self._options
        if (post := self._posts.get(group.group_id)) is None:
            [post] = convert(group, messages=options.messages, branches=options.branches)
        if (registration := self.progress.registration) is not None:
            check_fits(post, registration.limits)
            self._posts[group.group_id] = post
            needed = registration.batch_size // options.group_size
            while len(self._posts) > 2 * needed + _SPARE_POSTS:
                self._posts.popitem(last=False)
        return post

    def _next(self) -> ServedBatch | None:
        registration = self.progress.registration
        if registration is None:
            return None
        needed = registration.batch_size // self._options.group_size
        groups = self._feed.take(needed, timeout_s=_ASK_S)
        if not groups:
            return None
        step = self.step + 1
        parts = [_group_body(self._converted(g), self._options.group_size, step) for g in groups]
        if (old := self._durability.old_files(self.progress, step)) != self.progress.old_files:
            self._file.update(old_files=old)
        self._feed.trained(step, groups)
        for group in groups:
            self._posts.pop(group.group_id, None)
        self._created[step] = [tuple(m.created for m in g.members) for g in groups]
        self.step = step
        self.last = ServedBatch(step, b'{"batch":[%b]}' % b",".join(parts), latest=parts[-1])
        self.counts["batches"] += 1
        extra = {"action": "atropos_batch", "step": step, "groups": len(groups)}
        logger.info("step %d: %d groups", step, len(groups), extra=extra)
        return self.last

    def _settle(self, *, done: int) -> None:
        """Acknowledge the batches that are the trainer's for good.

        Args:
            done: last step after which it asked for another batch; 0 if it has not asked now.
        """
        progress = self.progress
        saved = self._durability.durable(progress, done=min(done, progress.delivered))
        if saved <= self.progress.saved:
            return
        before = self._feed.counts.saved
        self._feed.saved(saved)
        self.counts["acknowledged"] += self._feed.counts.saved - before
        self._file.update(saved=saved)
        for step in [step for step in self._created if step <= saved]:
            times = self._created.pop(step)
            trajectories = [at for group in times for at in group]
            self._meter.count(len(times), len(trajectories), trajectories)

    def _publish(self, step: int) -> None:
        """Set the run's policy version to that of the weights, if it is time."""
        every = self._options.publish_every
        if every is None or step <= self._published or step % every:
            return
        if announce(self._feed.published, step) is not None:
            self._published = step


def _group_body(post: Post, group_size: int, step: int) -> bytes:
    """The JSON of a group in the batch of `step`, with a null for each absent field."""
    fields = gzip.decompress(post.fields)
    head = {
        "env_id": _ENV_ID,
        "group_overrides": {"group_size": group_size, "hermes_queue": {"step": step}},
        "messages": None,  # a later key of the same name wins
        **dict.fromkeys(_ABSENT),
    }
    return json.dumps(head, separators=(",", ":"))[:-1].encode() + b"," + fields


class TrainerProgress(BaseModel):
    """How far the trainer is. Steps are numbers of batches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    registration: Registration | None = None
    """None before a trainer has registered."""
    saved: int = Field(default=0, ge=0)
    """Last step whose batch is the trainer's for good."""
    delivered: int = Field(default=0, ge=0)
    """Last step whose batch has arrived at the trainer's host."""
    old_files: Mapping[int, int] = Field(default_factory=dict)
    """Step -> mtime in ns of a checkpoint's file that was there before its batch."""


class ProgressFile:
    """The file of a `TrainerProgress`. The journal's lock keeps other processes away.

    Raises:
        ConfigurationError: the file is damaged or cannot be read; it stays unchanged.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / _FILE_NAME
        try:
            make_directory(directory)
            text = self.path.read_text("utf-8") if self.path.exists() else "{}"
            self.progress = TrainerProgress.model_validate_json(text)
        except (OSError, ValidationError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self.path}: cannot be read: {error}") from error

        self._turn = threading.Lock()

    def update(self, **changes: Any) -> None:
        """Change fields, durably; from any thread.

        Raises:
            HermesQueueError: the disk is full or failed; nothing was changed.
        """
        with self._turn:
            self._write(self.progress.model_copy(update=changes))

    def begin(self, progress: TrainerProgress) -> None:
        """Begin anew with `progress`, durably.

        Raises:
            HermesQueueError: the disk is full or failed; nothing was changed.
        """
        with self._turn:
            self._write(progress)

    def _write(self, progress: TrainerProgress) -> None:
        with replacing(self.path) as draft:
            draft.write_text(progress.model_dump_json(), "utf-8")
        self.progress = progress


class Durability:
    """When a batch is the trainer's for good, by `--ack`: the protocol has no acknowledgement."""

    def __init__(self, options: AtroposServerOptions) -> None:
        self._rule = options.ack
        self._template = options.checkpoint

    def old_files(self, progress: TrainerProgress, step: int) -> Mapping[int, int]:
        """`TrainerProgress.old_files`, with the file that an earlier training left for this step.

        Call it before the batch of that step is handed out.
        """
        found = {at: time for at, time in progress.old_files.items() if progress.saved < at != step}
        before = self._modified(step)
        return found if before is None else {**found, step: before}

    def durable(self, progress: TrainerProgress, *, done: int) -> int:
        """The last step whose batch is the trainer's for good.

        Args:
            progress: what is known of the trainer.
            done: last step after which the trainer has asked for another batch.
        """
        saved = progress.saved
        if self._rule == "next":
            return max(saved, done)
        if self._rule == "interval":
            registration = progress.registration
            every = registration.save_checkpoint_interval if registration else 0
            return max(saved, done - done % every) if every > 0 else saved
        steps = range(progress.delivered, saved, -1)
        return next((step for step in steps if self._is_new(progress, step)), saved)

    def _is_new(self, progress: TrainerProgress, step: int) -> bool:
        found = self._modified(step)
        return found is not None and found != progress.old_files.get(step)

    def _modified(self, step: int) -> int | None:
        """When the file of this step's checkpoint was modified; None if there is none."""
        if self._template is None:
            return None
        path = Path(self._template.replace("{step}", str(step)))
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        except OSError as error:
            extra = {"action": "atropos_checkpoint", "path": str(path)}
            logger.warning("%s: %s", path, error.strerror, extra=extra)
            return None
