"""Groups for TRL's `GRPOTrainer`, through its `rollout_func`.

It uses the sampler's logprobs only if it generates with vLLM itself; otherwise it trains every row
as if the weights in training had sampled it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from hermes_plugins.trainers.trl_callback import ack_on_save, take_rows
from hermes_plugins.trainers.versions import check
from hermes_queue.errors import ConfigurationError
from hermes_queue.results.blocking import HeldGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import Row
from hermes_queue.trainers.sources.policy import announce

logger = logging.getLogger(__name__)


class QueueRollout:
    """A `rollout_func` that takes groups from a feed instead of generating.

    Give the trainer `rollout_func=rollout`, `reward_funcs=score` and
    `callbacks=[rollout.callback]`, and a dataset of as many numbered prompts as there are groups to
    train on: their text is not used. With `use_vllm`, TRL brings the weights of each step to vLLM,
    and the run's policy version follows; otherwise call `feed.published` when new weights are live.

    Args:
        feed: None in every process but rank 0, which reads for all.
        max_tokens: longer rows are refused; 0 = no limit.
        idle_timeout_s: fail if no group comes for so long; None = wait for ever.

    Raises:
        ConfigurationError: TRL is not installed or does not fit; later, by the trainer's
            constructor, if its options do not fit the feed.
    """

    def __init__(
        self, feed: Feed | None, *, max_tokens: int = 0, idle_timeout_s: float | None = None
    ) -> None:
        check("trl_rollout")
        self._feed = feed
        self._idle_timeout_s = idle_timeout_s
        self._options: dict[str, Any] = {"max_tokens": max_tokens}
        self._taken: list[HeldGroup] = []
        """Since the last optimiser step."""
        self._warned = False
        self.__name__ = "hermes_queue"  # TRL and its loggers name functions
        self.callback = ack_on_save(feed, self._prepare, self._trained, idle_timeout_s)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """What TRL calls with the prompts of one process, each `num_generations` times."""
        if not trainer.model.training:
            raise ConfigurationError("groups of a run are no evaluation: set eval_strategy='no'")
        if self._feed is not None:
            self._publish(self._feed, trainer)
        rows = self._share(trainer.accelerator, len(prompts), trainer.num_generations)
        return {
            "prompt_ids": [list(row.ids[: row.cut]) for row in rows],
            "completion_ids": [list(row.ids[row.cut :]) for row in rows],
            "logprobs": [list(row.logprobs[row.cut :]) for row in rows],
            "env_mask": [list(row.mask[row.cut :]) for row in rows],
            "hermes_queue_score": [row.score for row in rows],
        }

    def _share(self, accelerator: Any, count: int, group_size: int) -> Sequence[Row]:
        """The rows of this process, `count` of them."""
        world: int = accelerator.num_processes
        if self._feed is None and world == 1:
            raise ConfigurationError("the only process needs a feed")
        sent: list[Any] = [None]
        if self._feed is not None:
            rows: list[Row] = []
            for _ in range(count * world // group_size):
                group, more = take_rows(
                    self._feed, self._idle_timeout_s, advantage=None, **self._options
                )
                self._taken.append(group)
                rows += more
            sent = [rows]
        if world > 1:
            from accelerate.utils import broadcast_object_list

            sent = broadcast_object_list(sent, from_process=0)
        rank: int = accelerator.process_index
        return list(sent[0][rank * count : (rank + 1) * count])

    def _publish(self, feed: Feed, trainer: Any) -> None:
        """Set the policy version if TRL has just brought the weights to vLLM."""
        if trainer.use_vllm:
            announce(feed.published, trainer.state.global_step)
        corrects = trainer.use_vllm and trainer.vllm_importance_sampling_correction
        if feed.options.max_lag != 0 and not corrects and not self._warned:
            self._warned = True
            logger.warning(
                "GRPOTrainer ignores the sampler's logprobs without use_vllm and "
                "vllm_importance_sampling_correction: groups of older weights are trained as if "
                "these weights had sampled them. Use AsyncGRPOTrainer, or max_lag=0",
                extra={"action": "logprobs_ignored"},
            )

    def _prepare(self, args: Any, _state: Any) -> None:
        if self._feed is None:
            return
        size = self._feed.options.group_size
        if args.num_generations != size:
            raise ConfigurationError(
                f"num_generations={args.num_generations} does not fit groups of {size}: TRL makes "
                "groups by position"
            )
        if args.gradient_accumulation_steps % args.steps_per_generation:
            raise ConfigurationError(
                f"steps_per_generation={args.steps_per_generation} spreads a group over several "
                "optimiser steps, and a checkpoint between them would hold a part of it: set it to "
                f"gradient_accumulation_steps={args.gradient_accumulation_steps}"
            )
        self._options["temperature"] = args.temperature
        self._feed.require(temperature=args.temperature, tokens=True)

    def _trained(self) -> list[HeldGroup]:
        taken, self._taken = self._taken, []
        return taken


def score(hermes_queue_score: list[float], **_: Any) -> list[float]:
    """The reward function: the scores that the verifiers gave."""
    return hermes_queue_score
