"""Groups for TRL's `AsyncGRPOTrainer`, which uses the sampler's logprobs in its loss."""

from __future__ import annotations

import itertools
import queue
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_plugins.trainers.trl_callback import ack_on_save, take_rows
from hermes_plugins.trainers.versions import check
from hermes_queue.errors import ConfigurationError
from hermes_queue.results.blocking import HeldGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import Advantage, Row
from hermes_queue.trainers.sources.policy import announce

_ADAPTERS = ".vllm_lora"
"""Directory below `output_dir` in which TRL puts an adapter for each version."""
_RETRY_S = 1.0
UNBOUNDED = 1_000_000
"""A `max_staleness` with which TRL drops nothing."""


class QueueWorker:
    """The rollout worker of an `AsyncGRPOTrainer`: hands it the groups of a feed.

    Give the trainer `rollout_worker=worker` and `callbacks=[worker.callback]`. It has no thread:
    the trainer's requests for samples read the feed. Only rank 0 uses it.

    Args:
        feed: what judges staleness; TRL's own bound has to be wider.
        advantage: how advantages are made; see `rows_of`.
        max_tokens: longer rows are refused; 0 = no limit.
        idle_timeout_s: fail if no group comes for so long; None = wait for ever.

    Raises:
        ConfigurationError: TRL is not installed or does not fit; later, by the trainer's
            constructor, if its options do not fit the feed.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        advantage: Advantage = "std",
        max_tokens: int = 0,
        idle_timeout_s: float | None = None,
    ) -> None:
        check("trl_async")
        self._feed = feed
        self._idle_timeout_s = idle_timeout_s
        self._options: dict[str, Any] = {"advantage": advantage, "max_tokens": max_tokens}
        self._offset: int | None = None
        """The run's policy version less the trainer's."""
        self._groups_per_step = 0
        self._wanted = 0
        """Groups for the steps that are left; what TRL reads beyond them is not trained."""
        self._numbers = itertools.count()
        self._training: deque[HeldGroup] = deque()
        """Groups whose rows the trainer has, or has in part, without those of ended steps."""
        self._samples: deque[Any] = deque()
        self._last: Any = None
        self._adapters: Path | None = None
        self._old_adapters: frozenset[tuple[str, int]] = frozenset()
        self.rollout_buffer = self
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.callback = ack_on_save(feed, self._prepare, self._trained, idle_timeout_s)

    def start(self) -> None:
        """Called by the trainer when it begins."""
        if not self._groups_per_step:
            raise ConfigurationError("AsyncGRPOTrainer needs callbacks=[worker.callback]")

    def stop(self) -> None:
        """Called by the trainer at its end; the feed stays open."""

    def check_health(self, stale_after_s: float) -> None:
        """Called by the trainer after a time without samples; what is wrong, `get` raises."""

    def update_model_version(self, model_version: int) -> None:
        """Called by the trainer when new weights are live: sets the run's policy version.

        Raises:
            ConfigurationError: they are a LoRA adapter, which no job asks for.
        """
        if new := _entries(self._adapters) - self._old_adapters:
            raise ConfigurationError(
                f"TRL has published the LoRA adapter {min(new)[0]}, but workers ask for the model "
                "that their jobs name, and would sample the base weights: start vLLM without "
                "--enable-lora, so that TRL merges the adapter into the weights that it sends"
            )
        now = announce(self._feed.published, model_version)
        while now is None and self._offset is None:  # samples need the first one
            time.sleep(_RETRY_S)
            now = announce(self._feed.published, model_version)
        if now is not None:
            self._offset = now - model_version

    def qsize(self) -> int:
        """Samples at hand."""
        return len(self._samples)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next sample.

        Raises:
            TimeoutError: none came within `idle_timeout_s`, whatever the trainer's `timeout` is.
        """
        if not self._samples and self._wanted:
            group, rows = take_rows(self._feed, self._idle_timeout_s, **self._options)
            self._wanted -= 1
            self._training.append(group)
            self._samples.extend(self._as_samples(group, rows))
        elif not self._samples:
            # Accelerate reads a batch ahead of the last step, which waits for it.
            self._samples.append(self._last)
        self._last = self._samples.popleft()
        return self._last

    def _as_samples(self, group: HeldGroup, rows: tuple[Row, ...]) -> Iterator[Any]:
        import numpy
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        now = (self._feed.version or 0) - (self._offset or 0)
        texts = {
            member.trajectory_id: [each.model_dump(exclude_none=True) for each in member.messages]
            for member in group.members
        }
        number = next(self._numbers)
        for row in rows:
            yield RolloutSample(
                prompt=[],
                completion=texts[row.trajectory_id],  # for the traces that TRL logs
                input_ids=numpy.asarray(row.ids, dtype=numpy.int64),
                completion_mask=numpy.asarray(row.mask, dtype=numpy.int64),
                old_log_probs=numpy.asarray(row.logprobs, dtype=numpy.float32),
                advantage=float(row.advantage or 0.0),
                model_version=now if row.version is None else row.version - (self._offset or 0),
                group_id=number,
                enqueued_at=group.finished,
                metrics={"reward": row.score, "reward_std": group.std or 0.0},
            )

    def _prepare(self, args: Any, state: Any) -> None:
        given = self._feed.options
        samples = args.per_device_train_batch_size * args.world_size
        samples *= args.gradient_accumulation_steps
        bounded = given.max_lag is not None and given.on_stale == "drop"
        staleness = given.max_lag + 1 if bounded and given.max_lag is not None else UNBOUNDED
        wrong = (
            samples % given.group_size
            and f"{samples} samples per step do not hold whole groups of {given.group_size}: "
            "change gradient_accumulation_steps",
            args.token_budget != 0
            and "batches by tokens split groups between steps: set token_budget=0, and bound rows "
            "by max_tokens of QueueWorker",
            args.max_staleness < staleness
            and "TRL would drop single samples of groups that the feed lets pass: set "
            f"max_staleness={staleness}",
            args.max_steps <= 0 and "a queue has no length: set max_steps",
        )
        if found := [each for each in wrong if each]:
            raise ConfigurationError("; ".join(map(str, found)))
        self._options["temperature"] = args.temperature
        self._feed.require(temperature=args.temperature, tokens=True)
        self._adapters = Path(args.output_dir) / _ADAPTERS
        self._old_adapters = _entries(self._adapters)
        self._groups_per_step = samples // given.group_size
        self._wanted = (args.max_steps - state.global_step) * self._groups_per_step

    def _trained(self) -> list[HeldGroup]:
        return [self._training.popleft() for _ in range(self._groups_per_step)]


def _entries(directory: Path | None) -> frozenset[tuple[str, int]]:
    """Names and times of what a directory holds; nothing if there is none."""
    if directory is None or not directory.is_dir():
        return frozenset()
    return frozenset((each.name, each.stat().st_mtime_ns) for each in directory.iterdir())


class NoWeightTransfer:
    """A `weight_transfer` for servers that TRL does not bring new weights to."""

    def init_weight_transfer(self) -> None:
        """Does nothing."""

    pause = resume = destroy = init_weight_transfer

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Let the other ranks take part in gathering the weights, and drop them."""
        deque(iterator, maxlen=0)
