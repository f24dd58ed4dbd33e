"""What the adapters of TRL share: fit groups, and acknowledgements at checkpoints."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hermes_queue.disk.durable import sync_tree
from hermes_queue.errors import ConfigurationError
from hermes_queue.results.blocking import HeldGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import Row, RowRefused, rows_of

logger = logging.getLogger(__name__)

_CHECKPOINT = "checkpoint-"


def take_rows(
    feed: Feed, idle_timeout_s: float | None, **options: Any
) -> tuple[HeldGroup, tuple[Row, ...]]:
    """The next group that can be trained, with one row for each member.

    Args:
        feed: where from; groups that are refused become dead letters.
        idle_timeout_s: how long to wait for each group; None = for ever.
        **options: of `rows_of`.

    Raises:
        TimeoutError: none came in time.
    """
    while True:
        taken = feed.take(1, timeout_s=idle_timeout_s)
        if not taken:
            raise TimeoutError(f"no group of run {feed.options.run} came in {idle_timeout_s:g} s")
        [group] = taken
        try:
            rows = rows_of(group, sequences="longest", **options)
            feed.note_longest(group)
            return group, rows
        except RowRefused as refusal:
            feed.refuse(group, refusal)


def ack_on_save(
    feed: Feed | None,
    prepare: Callable[[Any, Any], None],
    trained: Callable[[], Sequence[HeldGroup]],
    idle_timeout_s: float | None,
) -> Any:
    """A `TrainerCallback`: journals each step, and acknowledges at checkpoints.

    Args:
        feed: None in every process but rank 0.
        prepare: called with the training arguments and the trainer's state when the trainer is
            made, and when it begins; raises if they do not fit.
        trained: returns the groups of the step that has just ended.
        idle_timeout_s: how long rank 0 waits for each group, None = for ever, while the others
            wait for rank 0.
    """
    from transformers import TrainerCallback

    class AckOnSave(TrainerCallback):  # type: ignore[misc]
        def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if feed is not None and str(getattr(args.save_strategy, "value", "")) == "no":
                raise ConfigurationError(
                    "groups are acknowledged at checkpoints, and save_strategy='no' makes none"
                )
            patience_s = math.inf if idle_timeout_s is None else idle_timeout_s
            if feed is not None and args.world_size > 1 and patience_s >= args.ddp_timeout:
                logger.warning(
                    "the other %d processes wait in a collective call while this one waits for "
                    "groups, and fail after ddp_timeout=%d s: set it above the longest wait, and "
                    "idle_timeout_s below it",
                    args.world_size - 1,
                    args.ddp_timeout,
                    extra={"action": "ranks_wait"},
                )
            prepare(args, state)

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if feed is not None:
                feed.resume(state.global_step or None)
            prepare(args, state)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if feed is not None:
                feed.trained(state.global_step, trained())

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if feed is not None:
                sync_tree(Path(args.output_dir) / f"{_CHECKPOINT}{state.global_step}")
                feed.saved(state.global_step)

    return AckOnSave()
