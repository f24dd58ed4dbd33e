"""Tokens that were sampled and are not trained, since a trainer takes one sequence a trajectory."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from hermes_queue.models import BranchLabel, TrajectoryGroup
from hermes_queue.trainers.rows import tokens_left_out
from hermes_queue.wire.branches import TRAINED

logger = logging.getLogger(__name__)


class UntrainedTokens(Protocol):
    """Counts that have a place for them."""

    untrained_tokens: int


def count_left_out(
    group: TrajectoryGroup,
    counts: UntrainedTokens,
    *,
    branches: Collection[BranchLabel] = TRAINED,
) -> None:
    """Count the tokens of a group outside the longest sequences; the first ones are warned of.

    Raises:
        RowRefused: as `rows_of`.
    """
    left, sampled = tokens_left_out(group, branches)
    if left and not counts.untrained_tokens:
        logger.warning(
            "run %s: %d of the %d tokens that were sampled for group %s are not trained: its "
            "trajectories have several token sequences, of which only the longest ones are rows. "
            "The count untrained_tokens has all that follow. In token mode a trajectory is one "
            "sequence as a rule (docs/tokens.md)",
            *(group.run_id, left, sampled, group.group_id),
            extra={"action": "tokens_untrained", "group_id": group.group_id},
        )
    counts.untrained_tokens += left
