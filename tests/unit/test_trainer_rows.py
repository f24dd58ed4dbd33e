"""Rows of a group for a trainer, and what is refused."""

from __future__ import annotations

import pytest
from records import make_group, make_job, make_record

from hermes_queue.models import AgentSpec, TokenSequence, TrajectoryGroup, Turn
from hermes_queue.trainers.rows import RowRefused, rows_of

NAN = float("nan")
INF = float("inf")


def sequence(ids=(7, 8, 9), mask=(0, 1, 1), logprobs=(0.0, -0.5, -1.25), **more) -> TokenSequence:
    return TokenSequence(ids=ids, loss_mask=mask, logprobs=logprobs, **more)


def group(*scores: float | None, size: int | None = None, **change) -> TrajectoryGroup:
    plain = [
        make_record(make_job(sample=n, size=len(scores)), 0.0, policy=f"step-{n + 3}")
        for n in range(len(scores))
    ]
    change = {"sequences": (sequence(),), **change}
    members = tuple(
        member.model_copy(update={"score": score, **change})
        for member, score in zip(plain, scores, strict=True)
    )
    whole = make_group(*plain, size=len(scores) if size is None else size, members=())
    return whole.model_copy(update={"members": members})  # unlike the models, unchecked


def advantages(*scores: float, kind="mean") -> list[float | None]:
    return [row.advantage for row in rows_of(group(*scores), advantage=kind)]


def refusal(made: TrajectoryGroup, **options) -> str:
    with pytest.raises(RowRefused) as refused:
        rows_of(made, **options)
    return refused.value.reason


def test_a_row_has_tokens_advantage_and_origin():
    first, second = rows_of(group(0.0, 1.0))
    assert (first.ids, first.mask, first.logprobs) == ((7, 8, 9), (0, 1, 1), (0.0, -0.5, -1.25))
    assert (first.advantage, first.score, first.cut) == (-0.5, 0.0, 1)
    assert (first.index, first.of, first.version, first.branch) == (0, 1, 3, "main")
    assert (second.advantage, second.version) == (0.5, 4)
    assert first.trajectory_id != second.trajectory_id


def test_advantages_are_distances_from_the_mean_or_in_units_of_the_population_deviation():
    assert advantages(0.0, 1.0, 1.0, 0.0) == [-0.5, 0.5, 0.5, -0.5]
    assert advantages(0.0, 1.0, 1.0, 0.0, kind="std") == [-1.0, 1.0, 1.0, -1.0]
    assert advantages(0.0, 1.0, kind=None) == [None, None]


@pytest.mark.parametrize("kind", ["mean", "std"])
@pytest.mark.parametrize("scores", [(0.1, 0.1, 0.1), (0.3, 0.1 + 0.2), (0.7,)])
def test_equal_scores_give_no_advantage_whatever_rounding_does(scores, kind):
    assert advantages(*scores, kind=kind) == [0.0] * len(scores)


def test_huge_scores_have_finite_advantages_or_are_refused():
    assert advantages(1e300, -1e300, kind="std") == [1.0, -1.0]
    assert refusal(group(1.7e308, 1.7e308, -1.7e308)) == "score"


def test_a_judges_number_and_flags_change_no_row():
    report = {"flags": ["calls: history"], "judge": {"score": 0.0}, "reason": "canary"}
    judged = group(0.0, 1.0, rewards={"judge": 0.25}, report=report)
    assert rows_of(judged, advantage="std") == rows_of(group(0.0, 1.0), advantage="std")


def test_all_sequences_of_a_trajectory_are_rows_that_follow_each_other():
    two = (sequence(), sequence((7, 8, 9, 10), (0, 0, 0, 1), (0.0, 0.0, 0.0, -1.0)))
    rows = rows_of(group(0.0, 1.0, sequences=two))
    assert [(row.index, row.of, row.cut) for row in rows] == [(0, 2, 1), (1, 2, 3)] * 2
    assert [row.advantage for row in rows] == [-0.5, -0.5, 0.5, 0.5]
    longest = rows_of(group(0.0, 1.0, sequences=two), sequences="longest")
    assert [(row.index, row.of, len(row.ids)) for row in longest] == [(0, 1, 4)] * 2


def test_branches_that_the_reward_says_nothing_about_are_left_out():
    two = (sequence(), sequence(branch="side"))
    assert [row.branch for row in rows_of(group(1.0, sequences=two))] == ["main"]
    assert refusal(group(1.0, sequences=two[1:])) == "no_tokens"


def test_a_group_with_a_hole_or_of_another_size_is_refused():
    assert refusal(group(0.0, 1.0, size=3)) == "group_size"
    assert refusal(group(0.0).model_copy(update={"size": 0, "members": ()})) == "group_size"
    assert refusal(group(0.0, None)) == "score"
    assert refusal(group(0.0, NAN)) == "score"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (sequence(mask=(0, 1)), "lengths"),
        (sequence(ids=(7, -1, 9)), "token_ids"),
        (sequence(mask=(0, 2, 1)), "token_ids"),
        (sequence(mask=(0, 0, 0)), "nothing_trained"),
        (sequence((), (), ()), "nothing_trained"),
        (sequence(logprobs=(0.0, NAN, -1.0)), "logprobs"),
        (sequence(logprobs=(0.0, -INF, -1.0)), "logprobs"),
        (sequence(logprobs=(0.0, 0.5, -1.0)), "logprobs"),
        (sequence(mask=(1, 1, 1)), "no_prompt"),
    ],
)
def test_a_sequence_that_would_spoil_a_step_is_refused(row, reason):
    assert refusal(group(0.0, 1.0, sequences=(row,))) == reason


def test_a_trajectory_without_token_ids_is_refused():
    assert refusal(group(0.0, 1.0, sequences=None)) == "no_tokens"


def test_a_sequence_over_the_limit_is_refused_and_one_at_the_limit_is_not():
    assert refusal(group(0.0, 1.0), max_tokens=2) == "too_long"
    assert len(rows_of(group(0.0, 1.0), max_tokens=3)) == 2


@pytest.mark.parametrize(
    ("mode", "sampling", "temperature"),
    [
        ("raw_logprobs", {"temperature": 0.7}, 0.7),
        ("raw_logprobs", {"temperature": 0.7}, 1.0),
        ("processed_logprobs", {"temperature": 0.7}, 1.0),
        ("processed_logprobs", {"temperature": "hot"}, 1.0),
        ("processed_logprobs", {"temperature": NAN}, 1.0),
        ("processed_logprobs", {"temperature": 1.0, "top_p": 0.8}, 1.0),
        ("raw_logprobs", {"top_k": 20}, 1.0),
        ("raw_logprobs", {"min_p": 0.1}, 1.0),
        ("raw_logprobs", {"repetition_penalty": 1.1}, 1.0),
        ("raw_logprobs", {"logit_bias": {"7": -100}}, 1.0),
        ("processed_logprobs", {"bad_words": ["no"]}, 1.0),
        ("raw_logits", {}, 1.0),
        (None, {"temperature": 0.7}, 1.0),
    ],
)
def test_logprobs_of_another_distribution_than_the_trainers_are_refused(
    mode, sampling, temperature
):
    turns = (Turn(logprobs_mode=mode, sampling=sampling),)
    assert refusal(group(0.0, 1.0, turns=turns), temperature=temperature) == "logprobs_mode"
    assert len(rows_of(group(0.0, 1.0, turns=turns))) == 2


@pytest.mark.parametrize(
    ("mode", "sampling", "temperature"),
    [
        ("raw_logprobs", {"temperature": 1}, 1.0),
        ("processed_logprobs", {"temperature": 0.7, "top_p": 1, "top_k": -1}, 0.7),
        ("raw_logprobs", {"logit_bias": {}, "allowed_token_ids": None}, 1.0),
        (None, {}, 1.0),
    ],
)
def test_logprobs_that_the_trainer_recomputes_or_of_unknown_origin_are_taken(
    mode, sampling, temperature
):
    turns = (Turn(logprobs_mode=mode, sampling=sampling),)
    assert len(rows_of(group(0.0, 1.0, turns=turns), temperature=temperature)) == 2


def test_sampling_that_only_the_job_names_counts_too():
    agent = AgentSpec(kind="openai", sampling={"temperature": 0.2})
    made = group(0.0, 1.0, turns=(Turn(),), agent=agent)
    assert refusal(made, temperature=1.0) == "logprobs_mode"


def test_the_turns_of_other_sequences_do_not_matter():
    turns = (Turn(sampling={"temperature": 0.2}), Turn(sampling={"temperature": 1.0}))
    made = group(0.0, 1.0, turns=turns, sequences=(sequence(turns=(1,)),))
    assert len(rows_of(made, temperature=1.0)) == 2
