"""One table of groups for the tests of all adapters of trainers.

Token ids are unique within a group, and logprobs are different from token to token and exact in
float32, so that a row that is cut or shifted at the wrong place shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ledger_steps import begin, enqueue, publish
from records import make_group, make_job, make_record

from hermes_queue.ledger import Ledger
from hermes_queue.models import ScoredTrajectory, TokenSequence, TrajectoryGroup, Turn

Part = tuple[int, bool]
"""A number of tokens, and whether the policy sampled them."""
TWO_TURNS: tuple[Part, ...] = ((3, False), (2, True), (4, False), (3, True))
"""Prompt, reply, output of a tool, last reply: 12 tokens, of which 5 are trained."""


@dataclass(frozen=True)
class GroupCase:
    """A group, and what `rows_of` makes of it at temperature 1."""

    group: TrajectoryGroup
    refusal: str | None = None
    """Why it is refused; None = it has rows."""
    rows: int = 0


def sequence(first_id: int, parts: Sequence[Part] = TWO_TURNS) -> TokenSequence:
    """Tokens numbered from `first_id`; the n-th trained one has logprob -n / 8."""
    mask = [int(trained) for length, trained in parts for _ in range(length)]
    numbers = itertools.accumulate(mask)
    return TokenSequence(
        ids=tuple(range(first_id, first_id + len(mask))),
        loss_mask=tuple(mask),
        logprobs=tuple(-n / 8 if on else 0.0 for n, on in zip(numbers, mask, strict=True)),
    )


def member(
    instance: str,
    sample: int,
    score: float | None,
    *,
    size: int = 4,
    sequences: int = 1,
    mode: str | None = "processed_logprobs",
    version: str | None = None,
    parts: Sequence[Part] = TWO_TURNS,
    tokens: Sequence[TokenSequence] = (),
) -> ScoredTrajectory:
    """A trajectory whose turns and sequences agree; its policy version is `step-<sample + 3>`.

    Its sequences are `tokens`, or made of `parts`.
    """
    record = make_record(make_job(instance=instance, sample=sample, size=size), score)
    version = version or f"step-{sample + 3}"
    made = [sequence(100 * sample + 20 * n + 5, parts) for n in range(sequences)]
    found = [*tokens] or made
    turns = [turn for each in found for turn in _turns(each, mode, version)]
    change = {"turns": tuple(turns), "sequences": tuple(found)}
    return record.model_copy(update={**change, "policy_oldest": version, "policy_newest": version})


def _turns(whole: TokenSequence, mode: str | None, version: str) -> list[Turn]:
    """A turn for every block of trained tokens."""
    places = range(len(whole.ids))
    blocks = [
        list(block) for on, block in itertools.groupby(places, whole.loss_mask.__getitem__) if on
    ]
    return [
        Turn(
            prompt_ids=whole.ids[: block[0]],
            completion_ids=whole.ids[block[0] : block[-1] + 1],
            logprobs=whole.logprobs[block[0] : block[-1] + 1],
            logprobs_mode=mode,
            sampling={"temperature": 1.0},
            policy_version=version,
        )
        for block in blocks
    ]


def group_of(
    instance: str, scores: Sequence[float] = (0.0, 1.0, 1.0, 0.0), **more: Any
) -> GroupCase:
    """A fit group; `more` as for `member`."""
    size = len(scores)
    members = [member(instance, n, score, size=size, **more) for n, score in enumerate(scores)]
    return GroupCase(make_group(*members), rows=size * more.get("sequences", 1))


def _changed(case: GroupCase, refusal: str, sample: int, **change: object) -> GroupCase:
    """The group with another value in one of its members, unchecked, and refused for it."""
    members = list(case.group.members)
    members[sample] = members[sample].model_copy(update=change)
    return GroupCase(case.group.model_copy(update={"members": tuple(members)}), refusal)


def _without(case: GroupCase, sample: int) -> GroupCase:
    members = [each for each in case.group.members if each.sample_index != sample]
    change = {"members": tuple(members), "complete": False}
    return GroupCase(case.group.model_copy(update=change), "group_size")


CASES: dict[str, GroupCase] = {
    "several_turns": group_of("several_turns"),
    "two_sequences": group_of("two_sequences", sequences=2),
    "all_equal": group_of("all_equal", scores=(1.0,) * 4),
    "unknown_mode": group_of("unknown_mode", mode=None),
    "hole": _without(group_of("hole"), 1),
    "not_a_number": _changed(group_of("not_a_number"), "score", 2, score=float("nan")),
    "nothing_trained": _changed(
        group_of("nothing_trained"),
        "nothing_trained",
        3,
        sequences=(sequence(5, ((12, False),)),),
    ),
}
"""By name, which is the instance of the group."""
FIT = tuple(name for name, case in CASES.items() if case.refusal is None)
UNFIT = tuple(name for name, case in CASES.items() if case.refusal is not None)


def publish_group(ledger: Ledger, group: TrajectoryGroup) -> None:
    """Put a group of finite scores into the stream of results, as workers do.

    One with a hole becomes a group whose missing member failed.
    """
    name, size = group.instance_id, group.size
    found = {each.sample_index: each for each in group.members}
    jobs = [make_job(group.run_id, name, sample, size) for sample in range(size)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish(ledger, found.get(job.sample_index) or make_record(job, None))
