"""SkyRL: a generator that hands out groups from the queue, and a trainer that acknowledges them.

SkyRL asks for one group per prompt of its dataset; prompts are only slots here. Which of them a
step trains is learnt when it makes the tensors of a batch, in its fully asynchronous trainer too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from hermes_plugins.trainers.versions import check
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import TrajectoryGroup
from hermes_queue.results.blocking import HeldGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import Row, rows_of
from hermes_queue.trainers.sources.policy import announce

_SLICE_S = 0.5
"""How long taking groups keeps the feed from the trainer's thread."""


class QueueGenerator:
    """A `GeneratorInterface` over a feed whose groups have `n_samples_per_prompt` members.

    Args:
        feed: not used by anybody else.
        step_wise: whether `generator.step_wise_trajectories` is set: a row per token sequence.
            Without it a trajectory is its longest sequence.
        temperature: of `generator.sampling_params`, as for `rows_of`.
        max_tokens: as for `rows_of`. Groups that are unfit become dead letters.

    Raises:
        ConfigurationError: SkyRL is of another version.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        step_wise: bool = False,
        temperature: float | None = None,
        max_tokens: int = 0,
    ) -> None:
        check("skyrl")
        self.feed, self.step_wise = feed, step_wise
        fit: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
        fit["sequences"] = "all" if step_wise else "longest"
        self._rows: Callable[[TrajectoryGroup], tuple[Row, ...]]
        self._rows = partial(rows_of, advantage=None, **fit)
        feed.require(self._rows, temperature=temperature)
        self._lock = threading.Lock()
        """Held for every use of the feed, which SkyRL's threads share."""
        self._taking = asyncio.Lock()
        self._spare: list[HeldGroup] = []
        """Taken by a call that was cancelled, or for a prompt that SkyRL gave up."""
        self._out: dict[str, HeldGroup] = {}
        """By the prompt that they answer; not trained yet."""
        self._step = 0

    async def generate(self, input_batch: Mapping[str, Any], **_: object) -> dict[str, Any]:
        """Groups of the queue in the order of the prompts; waits for them.

        Raises:
            ConfigurationError: it is asked for an evaluation, or for groups of another size.
        """
        about, slots = input_batch["batch_metadata"], input_batch["trajectory_ids"]
        size = self.feed.options.group_size
        prompts = [each.instance_id for each in slots[::size]]
        if about.training_phase != "train":
            raise ConfigurationError(
                "groups of the queue are for training: set trainer.eval_interval=-1 and "
                "trainer.eval_before_train=false, and evaluate in a run of its own"
            )
        if [each.instance_id for each in slots] != [name for name in prompts for _ in range(size)]:
            raise ConfigurationError(f"set generator.n_samples_per_prompt={size}, as of the feed")
        async with self._taking:
            groups: list[HeldGroup] = []
            while not groups:
                groups = await asyncio.to_thread(self._take, prompts, about.global_step)
        return self._output(groups, slots)

    def trained(self, step: int, prompts: Iterable[str]) -> None:
        """Journal the groups of these prompts as of a step, before its checkpoint."""
        with self._lock:
            groups = [self._out.pop(name) for name in dict.fromkeys(prompts)]
            self.feed.trained(step, groups)

    def saved(self, step: int) -> None:
        """Acknowledge the groups in the checkpoint of a step, which is durable."""
        with self._lock:
            self.feed.saved(step)

    def _take(self, prompts: Sequence[str], step: int) -> list[HeldGroup]:
        with self._lock:
            if not self._step:
                self.feed.resume(step - 1 or None)
            if step > self._step:
                self._step = step
                announce(self.feed.published, step - 1)  # it asks when its servers have the weights
            self._spare += [self._out.pop(name) for name in prompts if name in self._out]
            if (missing := len(prompts) - len(self._spare)) > 0:
                taken = self.feed.take(missing, timeout_s=_SLICE_S)
                for group in [] if self.step_wise else taken:
                    self.feed.note_longest(group)
                self._spare += taken
            if len(self._spare) < len(prompts):
                return []
            groups = [self._spare.pop(0) for _ in prompts]
            self._out.update(zip(prompts, groups, strict=True))
            return groups

    def _output(self, groups: Sequence[HeldGroup], slots: Sequence[Any]) -> dict[str, Any]:
        rows = [row for group in groups for row in self._rows(group)]
        stops = {m.trajectory_id: m.stop_reason for each in groups for m in each.members}
        places = dict(zip(dict.fromkeys(row.trajectory_id for row in rows), slots, strict=True))
        return {
            "prompt_token_ids": [list(row.ids[: row.cut]) for row in rows],
            "response_ids": [list(row.ids[row.cut :]) for row in rows],
            "rewards": [row.score if _is_last(row) else 0.0 for row in rows],
            "loss_masks": [list(row.mask[row.cut :]) for row in rows],
            "stop_reasons": [str(stops[row.trajectory_id]) for row in rows],
            "rollout_metrics": {},
            "rollout_logprobs": [list(row.logprobs[row.cut :]) for row in rows],
            "trajectory_ids": [places[row.trajectory_id] for row in rows],
            "is_last_step": [_is_last(row) for row in rows] if self.step_wise else None,
        }


def with_acks(trainer: type[Any]) -> type[Any]:
    """The trainer class, which also tells its `QueueGenerator` what it trained and saved."""

    class AckingTrainer(trainer):  # type: ignore[misc]
        def convert_to_training_input(self, generator_output: Any, uids: Any) -> Any:
            self.generator.trained(self.global_step, uids)
            return super().convert_to_training_input(generator_output, uids)

        def save_checkpoints(self) -> str:
            path: str = super().save_checkpoints()
            # Newer versions write in the background.
            wait = getattr(self.dispatch, "finalize_pending_saves", lambda _: None)
            for model in ["policy", "critic"][: 1 + self.has_critic]:
                wait(model)
            self.generator.saved(self.global_step)
            return path

    return AckingTrainer


def _is_last(row: Row) -> bool:
    return row.index == row.of - 1
