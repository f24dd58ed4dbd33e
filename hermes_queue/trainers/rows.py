"""Rows that a trainer learns from: checked token sequences, each with its advantage.

Trainers check little: lengths that differ, a score that is not a number or logprobs of another
distribution spoil a step without an error. So a group is refused as a whole if a row of it is
unfit, since the advantages of its other rows depend on all of its members.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

from hermes_queue.models import BranchLabel, ScoredTrajectory, TokenSequence, TrajectoryGroup, Turn
from hermes_queue.policy import oldest_number, sampled_spans
from hermes_queue.wire.branches import TRAINED

SequencePolicy = Literal["longest", "all"]
"""Treatment of a trajectory with several sequences: only the longest (the first of equal ones), or
all of them."""
Advantage = Literal["mean", "std"]
"""mean: score minus the mean of the group. std: that, divided by their population standard
deviation."""

NOT_TRAINED = -100
"""Label of a token that no loss counts, the default `ignore_index` of PyTorch's cross-entropy."""
MAX_LOGPROB = 0.01
"""Tolerance for logprobs that rounding makes slightly greater than 0."""
MIN_STD = 1e-6
"""Scores with a smaller standard deviation count as equal, so that rounding makes no advantage."""
_TEMPERATURE_TOLERANCE = 1e-6
_NOT_TRUNCATED: Mapping[str, tuple[float, ...]] = {
    "top_p": (1.0,),
    "top_k": (0.0, -1.0),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
}
"""Values with which a sampling parameter leaves the distribution alone."""
_BIASED = ("logit_bias", "allowed_token_ids", "bad_words")
"""Sampling parameters that leave it alone if they are empty."""


class RowRefused(Exception):
    """A group that must not reach a trainer; `reason` is a word for counters."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Row:
    """One token sequence; `ids`, `mask` and `logprobs` have the same length."""

    ids: Sequence[int]
    mask: Sequence[int]
    """1 for tokens that the policy sampled, 0 for context."""
    logprobs: Sequence[float]
    """Of the sampler; 0.0 where `mask` is 0."""
    advantage: float | None
    """The same for all rows of a trajectory; None if the trainer computes it."""
    score: float
    cut: int
    """Index of the first trained token: trainers call what is before it the prompt."""
    trajectory_id: str
    group_id: str
    index: int
    """Place among the rows of its trajectory, which follow each other."""
    of: int
    """Number of rows of its trajectory."""
    version: int | None
    """Oldest policy version that can have sampled it; None if unknown."""
    branch: BranchLabel
    spans: tuple[tuple[int, int, str | None], ...] = ()
    """The trained tokens as (begin, end, version that sampled them); () if that is not known."""


def rows_of(
    group: TrajectoryGroup,
    *,
    sequences: SequencePolicy = "all",
    advantage: Advantage | None = "mean",
    branches: Collection[BranchLabel] = TRAINED,
    max_tokens: int = 0,
    temperature: float | None = None,
) -> tuple[Row, ...]:
    """The rows of a group, by `sample_index` of their trajectories.

    Args:
        group: finished, with all of its members measured.
        sequences: rows of a trajectory with several sequences.
        advantage: how advantages are made; None leaves it to the trainer. They are 0 in a group
            whose scores are equal.
        branches: only sequences of a program's branches with these labels.
        max_tokens: refuse longer sequences; 0 = no limit.
        temperature: the temperature at which the trainer recomputes logprobs, over the whole
            vocabulary. Groups that are known to be sampled in another way are refused; what a
            record does not say is taken to be right. None = no check.

    Raises:
        RowRefused: for reason `group_size`, `score`, `no_tokens`, `lengths`, `token_ids`,
            `logprobs`, `nothing_trained`, `no_prompt`, `too_long` or `logprobs_mode`.
    """
    if not group.size == len(group.members) > 0:
        raise RowRefused("group_size", f"{len(group.members)} members in a group of {group.size}")
    scores = [score_of(member) for member in group.members]
    advantages = _advantages(scores, advantage)
    rows: list[Row] = []
    for member, score, each in zip(group.members, scores, advantages, strict=True):
        found = sequences_of(member, sequences, branches)
        for _, sequence in found:
            _check_place(member.trajectory_id, sequence, max_tokens)
        if temperature is not None:
            for turn in _trained_turns(member, [sequence for _, sequence in found]):
                _check_sampling(member, turn, temperature)
        rows += _rows(member, [sequence for _, sequence in found], score, each)
    return tuple(rows)


def sequences_of(
    member: ScoredTrajectory, policy: SequencePolicy, branches: Collection[BranchLabel]
) -> list[tuple[int, TokenSequence]]:
    """The checked sequences of a trajectory, each with its index in the record; at least one.

    Raises:
        RowRefused: for reason `no_tokens`, `lengths`, `token_ids`, `logprobs` or
            `nothing_trained`.
    """
    found = [each for each in enumerate(member.sequences or ()) if each[1].branch in branches]
    if len(found) > 1 and found[0][1].turns:
        # What a program's conversations share is trained in one of them.
        found = [pair for pair in found if 1 in pair[1].loss_mask] or found
    if member.sequences and not found:
        raise RowRefused(
            "no_tokens", f"{member.trajectory_id} has no tokens of {', '.join(sorted(branches))}"
        )
    if not found:
        raise RowRefused(
            "no_tokens",
            f"{member.trajectory_id} has no token ids: its model server returned none, and "
            "they are never made up (docs/tokens.md)",
        )
    if policy == "longest":
        found = [max(found, key=lambda pair: len(pair[1].ids))]
    for _, sequence in found:
        _check(member.trajectory_id, sequence)
    return found


def tokens_left_out(
    group: TrajectoryGroup, branches: Collection[BranchLabel] = TRAINED
) -> tuple[int, int]:
    """Sampled tokens of a fit group that are in no longest sequence, and all sampled ones."""
    left = sampled = 0
    for member in group.members:
        counts = [
            (len(sequence.ids), sum(sequence.loss_mask))
            for _, sequence in sequences_of(member, "all", branches)
        ]
        every = sum(trained for _, trained in counts)
        sampled += every
        left += every - max(counts, key=lambda each: each[0])[1]
    return left, sampled


def is_in_range(sequence: TokenSequence) -> bool:
    """Whether no token id is negative, and masks are 0 or 1."""
    return not (sequence.ids and min(sequence.ids) < 0) and {*sequence.loss_mask} <= {0, 1}


def labels_of(sequence: TokenSequence) -> list[int]:
    """The ids of the trained tokens at their places, `NOT_TRAINED` elsewhere."""
    pairs = zip(sequence.ids, sequence.loss_mask, strict=True)
    return [i if trained else NOT_TRAINED for i, trained in pairs]


def score_of(member: ScoredTrajectory) -> float:
    """The score of a trajectory.

    Raises:
        RowRefused: for reason `score`: it was not measured, or is not finite.
    """
    if member.score is None or not math.isfinite(member.score):
        raise RowRefused("score", f"{member.trajectory_id}: score {member.score}")
    return member.score


def _check(name: str, sequence: TokenSequence) -> None:
    ids, mask, logprobs = sequence.ids, sequence.loss_mask, sequence.logprobs
    if not len(ids) == len(mask) == len(logprobs):
        raise RowRefused(
            "lengths",
            f"{name}: {len(ids)} token ids, {len(mask)} masks, {len(logprobs)} logprobs",
        )
    if not is_in_range(sequence):
        raise RowRefused("token_ids", f"{name}: a token id is negative, or a mask is not 0 or 1")
    if 1 not in mask:
        raise RowRefused("nothing_trained", f"{name}: no token of the sequence is trained")
    trained = list(compress(logprobs, mask))
    if not math.isfinite(sum(trained)) or max(trained) > MAX_LOGPROB:
        raise RowRefused("logprobs", f"{name}: a logprob is not finite, or is above 0")


def _check_place(name: str, sequence: TokenSequence, max_tokens: int) -> None:
    if 0 < max_tokens < len(sequence.ids):
        raise RowRefused(
            "too_long", f"{name}: a sequence of {len(sequence.ids)} tokens, over {max_tokens}"
        )
    if sequence.loss_mask[0]:
        # A model gives no logprob for a token that nothing precedes.
        raise RowRefused("no_prompt", f"{name}: the first token of a sequence is trained")


def _trained_turns(member: ScoredTrajectory, sequences: list[TokenSequence]) -> Iterator[Turn]:
    """The turns that may have sampled tokens of these sequences, each once."""
    if any(not sequence.turns for sequence in sequences):
        yield from member.turns
        return
    for number in sorted({number for sequence in sequences for number in sequence.turns}):
        if number < len(member.turns):
            yield member.turns[number]


def _check_sampling(member: ScoredTrajectory, turn: Turn, temperature: float) -> None:
    """Refuse a turn whose logprobs are not what the trainer recomputes."""
    name = member.trajectory_id
    sampling: Mapping[str, Any] = turn.sampling or member.agent.sampling
    mode = turn.logprobs_mode
    if mode not in (None, "raw_logprobs", "processed_logprobs"):
        raise RowRefused("logprobs_mode", f"{name}: its server returned {mode[:50]}")
    if mode == "raw_logprobs" and not same_parameter(1.0, temperature):
        raise RowRefused(
            "logprobs_mode",
            f"{name}: raw logprobs are of temperature 1, the trainer recomputes them at "
            f"{temperature:g}; let the server return processed_logprobs",
        )
    used = sampling.get("temperature")
    if used is not None and not same_parameter(used, temperature):
        raise RowRefused(
            "logprobs_mode",
            f"{name}: was sampled at temperature {str(used)[:50]}, the trainer recomputes "
            f"logprobs at {temperature:g}",
        )
    changing = [key for key in _BIASED if sampling.get(key)]
    for key, neutral in _NOT_TRUNCATED.items():
        value = sampling.get(key)
        if value is not None and not any(same_parameter(value, each) for each in neutral):
            changing.append(key)
    if changing:
        key, value = changing[0], str(sampling[changing[0]])[:50]
        raise RowRefused(
            "logprobs_mode",
            f"{name}: was sampled with {key}={value}, which the trainer does not recompute",
        )


def same_parameter(value: object, number: float) -> bool:
    """Whether a sampling parameter has this value, apart from rounding."""
    return isinstance(value, int | float) and abs(value - number) <= _TEMPERATURE_TOLERANCE


def _advantages(scores: list[float], kind: Advantage | None) -> list[float | None]:
    if kind is None:
        return [None] * len(scores)
    mean = math.fsum(score / len(scores) for score in scores)
    distances = [score - mean for score in scores]
    widest = max(map(abs, distances))
    if not math.isfinite(widest):
        raise RowRefused("score", "the scores of the group are too far apart")
    # Divided first, since the square of a large score is no number.
    shares = [distance / widest if widest else 0.0 for distance in distances]
    share_std = math.sqrt(math.fsum(share * share for share in shares) / len(shares))
    if min(scores) == max(scores) or widest * share_std < MIN_STD:
        return [0.0] * len(scores)
    return [*distances] if kind == "mean" else [share / share_std for share in shares]


def _rows(
    member: ScoredTrajectory,
    sequences: list[TokenSequence],
    score: float,
    advantage: float | None,
) -> Iterator[Row]:
    version = oldest_number(member)
    for index, sequence in enumerate(sequences):
        yield Row(
            ids=sequence.ids,
            mask=sequence.loss_mask,
            logprobs=sequence.logprobs,
            advantage=advantage,
            score=score,
            cut=sequence.loss_mask.index(1),
            trajectory_id=member.trajectory_id,
            group_id=member.group_id,
            index=index,
            of=len(sequences),
            version=version,
            branch=sequence.branch,
            spans=tuple(sampled_spans(member, sequence)),
        )
