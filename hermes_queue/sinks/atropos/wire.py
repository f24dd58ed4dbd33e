"""The Atropos API's request for one group, converted from ours.

The server checks no lengths, no finiteness and no sizes. An invalid group reaches the trainer,
or blocks it for ever. So everything is checked here, and a harmful group is refused. The
sentinels are those of its trainers: masks hold -100 for untrained tokens and the token id
elsewhere; `inference_logprobs` hold exactly 1.0 for untrained tokens, never null.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from hermes_queue.models import BranchLabel, ScoredTrajectory, TokenSequence, TrajectoryGroup
from hermes_queue.trainers.rows import RowRefused, SequencePolicy, labels_of, score_of, sequences_of
from hermes_queue.wire.branches import TRAINED

NO_LOGPROB = 1.0
GZIP_LEVEL = 1
"""Measured on 8 x 8k tokens: level 9 takes twenty times as long to save an eighth."""


@dataclass(frozen=True, slots=True)
class TrainerLimits:
    """The limits that the trainer registered."""

    batch_size: int
    """Sequences per batch."""
    max_token_len: int
    """Sequences must have fewer tokens than this; 0 or less: no limit."""

    def groups_per_batch(self, group_size: int) -> int:
        """Groups in a batch; 0 if that size can never form one, which would block the trainer."""
        power_of_two = group_size > 0 and group_size & (group_size - 1) == 0
        if not power_of_two or self.batch_size % group_size:
            return 0
        return self.batch_size // group_size


@dataclass(frozen=True, slots=True)
class Post:
    """One group as it is sent, without the fields that depend on the moment of sending."""

    key: str
    """`<group id>#<n>`: the n-th post made from that group."""
    longest: int
    """Tokens of its longest sequence."""
    fields: bytes
    """All fields that do not change, as JSON without the opening brace, gzip-compressed."""

    def body(self, env_id: int, group_overrides: dict[str, Any]) -> bytes:
        """The request's body.

        Two gzip members form one stream (RFC 1952), so a group is compressed only once, however
        often it is sent.
        """
        head = json.dumps(
            {"env_id": env_id, "group_overrides": group_overrides}, separators=(",", ":")
        )
        return gzip.compress(f"{head[:-1]},".encode(), GZIP_LEVEL) + self.fields


def convert(
    group: TrajectoryGroup,
    *,
    sequences: SequencePolicy = "longest",
    messages: bool = False,
    branches: Collection[BranchLabel] = TRAINED,
) -> tuple[Post, ...]:
    """The posts for a group whose members are all measured, of sequences of `branches`.

    With `sequences="all"` there are as many as the largest number of sequences of a member. A
    member with fewer fills the later posts with its longest sequence, of which only the last
    token is trained, with advantage zero (`set_advantage_to_zero`). Trainers take scores
    relative to the group, so every post needs the score of every member, and some divide by the
    number of trained tokens.

    Raises:
        RowRefused: for reason `score`, `no_tokens`, `lengths`, `token_ids`, `logprobs` or
            `nothing_trained`.
    """
    chosen = [sequences_of(member, sequences, branches) for member in group.members]
    scores = [score_of(member) for member in group.members]
    return tuple(
        _post(group, number, [_Row.of(m, c, number) for m, c in rows], scores, messages)
        for number in range(max(map(len, chosen), default=0))
        for rows in [list(zip(group.members, chosen, strict=True))]
    )


def check_fits(post: Post, limits: TrainerLimits) -> None:
    """Check that the post is not too long for this trainer.

    Raises:
        RowRefused: for reason `too_long`.
    """
    if 0 < limits.max_token_len <= post.longest:
        raise RowRefused(
            "too_long",
            f"a sequence has {post.longest} tokens, the trainer takes fewer than "
            f"{limits.max_token_len}",
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """One sequence of a post."""

    member: ScoredTrajectory
    sequence: TokenSequence
    number: int
    """Index of the sequence in its member."""
    of_how_many: int
    filler: bool

    @classmethod
    def of(cls, member: ScoredTrajectory, chosen: list[tuple[int, TokenSequence]], n: int) -> _Row:
        total = len(member.sequences or ())
        if n < len(chosen):
            return cls(member, chosen[n][1], chosen[n][0], total, filler=False)
        number, sequence = max(chosen, key=lambda pair: len(pair[1].ids))
        return cls(member, _last_token_only(sequence), number, total, filler=True)

    def overrides(self) -> dict[str, Any]:
        """Fields that trainers read per sequence, and our fields with its origin.

        No other fields of ours about a sequence survive the server.
        """
        known: dict[str, Any] = {"set_advantage_to_zero": True} if self.filler else {}
        temperature = _temperature(self.member)
        if temperature is not None:
            known["temperature"] = temperature
        member = self.member
        return known | {
            "hermes_queue": {
                "trajectory_id": member.trajectory_id,
                "group_id": member.group_id,
                "run_id": member.run_id,
                "env": member.env,
                "instance_id": member.instance_id,
                "policy_version": member.policy_version,
                "policy_versions": _policy_versions(member),
                "attempt": member.attempt,
                "stop_reason": member.stop_reason,
                "rewards": member.rewards,
                "sequence": self.number,
                "sequences": self.of_how_many,
                "branch": self.sequence.branch,
                "filler": self.filler,
            }
        }


def _last_token_only(sequence: TokenSequence) -> TokenSequence:
    last = len(sequence.loss_mask) - 1 - sequence.loss_mask[::-1].index(1)
    mask = tuple(int(position == last) for position in range(len(sequence.loss_mask)))
    return sequence.model_copy(update={"loss_mask": mask})


def _post(
    group: TrajectoryGroup, number: int, rows: list[_Row], scores: list[float], messages: bool
) -> Post:
    parts = {
        "tokens": _nested(_numbers(row.sequence.ids) for row in rows),
        "masks": _nested(_numbers(labels_of(row.sequence)) for row in rows),
        "inference_logprobs": _nested(_logprobs(row.sequence) for row in rows),
        "scores": json.dumps(scores),
        "overrides": json.dumps([row.overrides() for row in rows], separators=(",", ":")),
    }
    if messages:
        texts = [[m.to_openai() for m in row.member.messages] for row in rows]
        parts["messages"] = json.dumps(texts, separators=(",", ":"))
    text = ",".join(f'"{name}":{value}' for name, value in parts.items()) + "}"
    return Post(
        key=f"{group.group_id}#{number}",
        longest=max(len(row.sequence.ids) for row in rows),
        fields=gzip.compress(text.encode(), GZIP_LEVEL),
    )


def _nested(lists: Iterable[str]) -> str:
    return f"[{','.join(lists)}]"


def _numbers(values: Sequence[int]) -> str:
    return json.dumps(list(values), separators=(",", ":"))


def _logprobs(sequence: TokenSequence) -> str:
    """Logprobs as text.

    Nine digits identify every float32, and logprobs are float32 since capture.
    """
    places = ["%.9g" if trained else "1.0" for trained in sequence.loss_mask]
    return f"[{','.join(places)}]" % tuple(compress(sequence.logprobs, sequence.loss_mask))


def _temperature(member: ScoredTrajectory) -> float | None:
    """The sampling temperature, if it is known and the same for all turns."""
    known = {turn.sampling.get("temperature") for turn in member.turns if turn.sampling}
    known = known or {member.agent.sampling.get("temperature")}
    [value] = known if len(known) == 1 else [None]
    return float(value) if isinstance(value, int | float) else None


def _policy_versions(member: ScoredTrajectory) -> list[str]:
    """Policy versions of the turns, in order, without repetitions."""
    return list(dict.fromkeys(t.policy_version for t in member.turns if t.policy_version))
