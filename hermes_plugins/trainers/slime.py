"""slime's rollout function, data source and rewards; also for its forks with the same types.

slime tells nobody when a step is done, only when it is saved. So the journal gets a rollout's
groups when they are handed out: its line counts only if there is a checkpoint of that rollout or a
later one, which was trained on them.
"""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hermes_plugins.trainers.settings import TrainerSettings
from hermes_plugins.trainers.versions import check
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import TrajectoryGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import rows_of
from hermes_queue.trainers.sources.policy import announce

logger = logging.getLogger(__name__)

_SCALED = ("grpo", "gspo", "cispo")
"""Estimators for which slime subtracts a group's mean and divides by its standard deviation."""
_CENTRED = (*_SCALED, "reinforce_plus_plus_baseline")
"""Those for which it subtracts the mean."""
_RAW = ("ppo", "reinforce_plus_plus")
"""Those that get rewards as they are."""
_EPSILON = 1e-6  # that slime adds to a standard deviation
_CUT_OFF = ("max_turns", "max_tokens", "max_cost", "context_length", "time_limit")
"""Reasons for an end that slime calls truncated."""


class QueueDataSource:
    """`--data-source-path`: groups of the run in `HERMES_QUEUE_TRAINER_RUN`.

    A rollout has `rollout_batch_size` groups of `n_samples_per_prompt`. They are acknowledged when
    slime has saved the model; with `--async-save` when it saves the next one.

    Raises:
        ConfigurationError: with these options slime would not train each group once.
    """

    def __init__(self, args: Any) -> None:
        check("slime")
        settings = TrainerSettings()
        _check(args, settings)
        self._args = args
        self._unsure: int | None = None  # the rollout whose checkpoint is still being written
        fit = {"temperature": args.rollout_temperature, "max_tokens": settings.max_tokens}
        self.feed = Feed(
            check=partial(rows_of, advantage=None, **fit),
            temperature=args.rollout_temperature,
            group_size=args.n_samples_per_prompt,
            age="begun",  # SGLang's versions begin at 1 again when slime is restarted
            **settings.model_dump(exclude={"directory", "max_tokens"}),
            directory=settings.directory or Path(args.save),
        )

    def take(self, rollout_id: int) -> Sequence[TrajectoryGroup]:
        """The groups of a rollout, whose number becomes the run's policy version."""
        announce(self.feed.published, rollout_id)
        groups = self.feed.take(self._args.rollout_batch_size)
        self.feed.trained(rollout_id, groups)
        return groups

    def save(self, rollout_id: int) -> None:
        """Called when the model of a rollout is saved."""
        done = self._unsure if getattr(self._args, "async_save", False) else rollout_id
        self._unsure = rollout_id
        if done is not None:
            self.feed.saved(done)

    def load(self, rollout_id: int | None = None) -> None:
        """Called with the rollout of the checkpoint that was loaded, -1 without one."""
        self.feed.resume(None if rollout_id is None or rollout_id < 0 else rollout_id)

    def get_samples(self, _: Any) -> Any:
        """There are no prompts to sample, and none come back."""
        raise ConfigurationError(f"QueueDataSource goes with {__name__}.generate_rollout")

    add_samples = get_samples

    def __len__(self) -> int:
        return sys.maxsize


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """`--rollout-function-path`: finished groups as `RolloutFnTrainOutput`; no evaluations."""
    if evaluation:
        raise ConfigurationError("the queue evaluates nothing: set slime's --eval-function-path")
    from slime.rollout.base_types import RolloutFnTrainOutput

    first = rollout_id * args.rollout_batch_size
    groups = data_source.take(rollout_id)
    samples = [_samples(args, first + n, group) for n, group in enumerate(groups)]
    counts = data_source.feed.counts
    names = ("recognised", "dropped", "stale", "policy_unknown")
    metrics = {f"rollout/queue_{name}": getattr(counts, name) for name in names}
    return RolloutFnTrainOutput(samples=samples, metrics=metrics)


def normalize_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """`--custom-reward-post-process-path`: raw rewards, and those relative to their group.

    As slime's own, but by `group_index` whatever the number of samples, and with one vote for each
    trajectory (`rollout_id`), however many token sequences it has.
    """
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    if not args.rewards_normalization or args.advantage_estimator not in _CENTRED:
        return raw, raw
    votes: dict[int, dict[int, float]] = {}
    for sample, reward in zip(samples, raw, strict=True):
        votes.setdefault(sample.group_index, {})[sample.rollout_id] = reward
    scaled = args.grpo_std_normalization and args.advantage_estimator in _SCALED
    shapes = {}
    for group, each in votes.items():
        std = statistics.stdev(each.values()) if scaled and len(each) > 1 else 0.0
        shapes[group] = statistics.fmean(each.values()), std + _EPSILON if scaled else 1.0
    pairs = [(reward, *shapes[each.group_index]) for each, reward in zip(samples, raw, strict=True)]
    return raw, [(reward - mean) / scale for reward, mean, scale in pairs]


def _samples(args: Any, number: int, group: TrajectoryGroup) -> list[Any]:
    from slime.utils.types import Sample

    names = [each.trajectory_id for each in group.members]
    cut_off = {each.trajectory_id for each in group.members if each.stop_reason in _CUT_OFF}
    made = []
    for row in rows_of(group, advantage=None):
        index = number * args.n_samples_per_prompt + names.index(row.trajectory_id)
        made.append(
            Sample(
                group_index=number,
                index=index,
                rollout_id=index,
                tokens=list(row.ids),
                response_length=len(row.ids) - row.cut,
                loss_mask=list(row.mask[row.cut :]),
                rollout_log_probs=list(row.logprobs[row.cut :]),
                reward={args.reward_key: row.score} if args.reward_key else row.score,
                weight_versions=[] if row.version is None else [str(row.version)],
                status=Sample.Status("truncated" if row.trajectory_id in cut_off else "completed"),
                metadata={"trajectory_id": row.trajectory_id, "group_id": row.group_id},
            )
        )
    return made


def _check(args: Any, settings: TrainerSettings) -> None:
    rollout = args.rollout_batch_size * args.n_samples_per_prompt
    wrong = {
        "set HERMES_QUEUE_TRAINER_RUN": not settings.run,
        "set --num-rollout, since a queue has no epochs": args.num_rollout is None,
        "set --save and --save-interval, and not --disable-rollout-global-dataset: groups are "
        "acknowledged when slime saves": not (
            args.save and args.save_interval and args.rollout_global_dataset
        ),
        f"let --global-batch-size divide a rollout's {rollout} trajectories, or slime leaves "
        "some out": bool(args.global_batch_size) and rollout % args.global_batch_size != 0,
        f"--advantage-estimator {args.advantage_estimator} is not known here, so nobody could say "
        f"how its rewards are normalised: use {', '.join((*_CENTRED, *_RAW))}, or "
        "--disable-rewards-normalization": args.rewards_normalization
        and args.advantage_estimator not in (*_CENTRED, *_RAW),
    }
    if any(wrong.values()):
        raise ConfigurationError(f"slime: {'; '.join(text for text in wrong if wrong[text])}")
    if not (getattr(args, "use_rollout_logprobs", False) or getattr(args, "use_tis", False)):
        logger.warning(
            "slime will ignore the sampler's logprobs: set --use-tis or --use-rollout-logprobs",
            extra={"action": "trainer_ignores_logprobs"},
        )
