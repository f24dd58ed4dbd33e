"""Groups as the Atropos API takes them, and what is refused."""

from __future__ import annotations

import gzip
import json
import struct

import pytest
from records import make_group, make_job, make_record

from hermes_queue.models import AgentSpec, TokenSequence, TrajectoryGroup, Turn
from hermes_queue.sinks.atropos.options import AtroposCounts
from hermes_queue.sinks.atropos.wire import TrainerLimits, check_fits, convert
from hermes_queue.trainers.rows import RowRefused

NAN = float("nan")


def sequence(ids=(1, 2, 3), mask=(0, 1, 1), logprobs=(0.0, -0.5, -1.25)) -> TokenSequence:
    return TokenSequence(ids=ids, loss_mask=mask, logprobs=logprobs)


def group(*rows: tuple[TokenSequence, ...] | None, **change) -> TrajectoryGroup:
    plain = tuple(
        make_record(make_job(sample=n, size=len(rows)), float(n)) for n in range(len(rows))
    )
    changed = tuple(
        member.model_copy(update={"sequences": row, **change})
        for member, row in zip(plain, rows, strict=True)
    )
    # Unlike the models, unchecked.
    return make_group(*plain).model_copy(update={"members": changed})


def sent(made, **options):
    return [json.loads(gzip.decompress(p.body(3, {"x": 1}))) for p in convert(made, **options)]


def test_a_body_has_the_fields_of_the_moment_and_those_of_the_group():
    [body] = sent(group((sequence(),), (sequence(),)))
    assert (body["env_id"], body["group_overrides"]) == (3, {"x": 1})
    assert body["tokens"] == [[1, 2, 3], [1, 2, 3]]
    assert body["masks"] == [[-100, 2, 3], [-100, 2, 3]]
    assert body["inference_logprobs"] == [[1.0, -0.5, -1.25], [1.0, -0.5, -1.25]]
    assert body["scores"] == [0.0, 1.0]
    assert "messages" not in body


def test_a_judges_number_is_told_and_is_no_score():
    plain, judged = (group((sequence(),), rewards=given) for given in ({}, {"judge": 0.25}))
    [body], [same] = sent(judged), sent(plain)
    assert body.pop("overrides")[0]["hermes_queue"]["rewards"] == {"judge": 0.25}
    assert same.pop("overrides")[0]["hermes_queue"]["rewards"] == {}
    assert body == same


def test_logprobs_are_exact_as_float32():
    values = [struct.unpack("f", struct.pack("f", v))[0] for v in (-1 / 3, -1e-7, -12.345678, 0.0)]
    row = sequence((1, 2, 3, 4), (1, 1, 1, 1), tuple(values))
    [body] = sent(group((row,)))
    assert [struct.pack("f", v) for v in body["inference_logprobs"][0]] == [
        struct.pack("f", v) for v in values
    ]


def test_the_longest_sequence_is_sent_wherever_it_stands():
    long = sequence((1, 2, 3, 4), (0, 1, 1, 1), (0.0, -1.0, -1.0, -1.0))
    [body] = sent(group((sequence(), long, sequence((9, 9), (0, 1), (0.0, -1.0)))))
    assert body["tokens"] == [[1, 2, 3, 4]]
    assert body["overrides"][0]["hermes_queue"]["sequence"] == 1
    assert body["overrides"][0]["hermes_queue"]["sequences"] == 3


def test_all_sequences_make_further_posts_whose_fillers_train_nothing():
    short = sequence((9, 9), (0, 1), (0.0, -2.0))
    first, second = sent(group((sequence(), short), (sequence(),)), sequences="all")
    assert (first["tokens"], second["tokens"]) == ([[1, 2, 3]] * 2, [[9, 9], [1, 2, 3]])
    assert second["masks"] == [[-100, 9], [-100, -100, 3]]
    assert second["inference_logprobs"] == [[1.0, -2.0], [1.0, 1.0, -1.25]]
    assert [o.get("set_advantage_to_zero") for o in second["overrides"]] == [None, True]
    assert second["overrides"][1]["hermes_queue"]["filler"] is True


def test_provenance_and_temperature_travel_in_the_overrides():
    turns = tuple(Turn(policy_version=v, sampling={"temperature": 0.7}) for v in ("7", "8", "7"))
    [body] = sent(group((sequence(),), policy_version="7", turns=turns))
    [override] = body["overrides"]
    ours = override["hermes_queue"]
    assert override["temperature"] == 0.7
    assert (ours["policy_version"], ours["policy_versions"]) == ("7", ["7", "8"])
    assert ours["trajectory_id"] == make_job().trajectory_id


def test_the_temperature_of_the_job_is_taken_when_the_turns_tell_none():
    agent = AgentSpec(sampling={"temperature": 0.3})
    [body] = sent(group((sequence(),), turns=(), agent=agent))
    assert body["overrides"][0]["temperature"] == 0.3


def test_messages_have_a_role_and_content_when_they_are_sent():
    [body] = sent(group((sequence(),)), messages=True)
    assert [(m["role"], m["content"]) for m in body["messages"][0]] == [
        ("user", "1+1"),
        ("assistant", "2"),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (None, "no_tokens"),
        ((), "no_tokens"),
        ((sequence(mask=(0, 1)),), "lengths"),
        ((sequence(logprobs=(0.0, -0.5)),), "lengths"),
        ((sequence(ids=(1, -2, 3)),), "token_ids"),
        ((sequence(mask=(0, 2, 1)),), "token_ids"),
        ((sequence(mask=(0, 0, 0)),), "nothing_trained"),
        ((TokenSequence(ids=(), loss_mask=(), logprobs=()),), "nothing_trained"),
        ((sequence(logprobs=(0.0, NAN, -1.0)),), "logprobs"),
        ((sequence(logprobs=(0.0, float("-inf"), -1.0)),), "logprobs"),
        ((sequence(logprobs=(0.0, 1.0, -1.0)),), "logprobs"),
        ((sequence(logprobs=(0.0, 0.5, -1.0)),), "logprobs"),
    ],
)
def test_a_member_that_cannot_be_trained_on_refuses_its_group(row, reason):
    with pytest.raises(RowRefused) as refusal:
        convert(group((sequence(),), row))
    assert refusal.value.reason == reason


@pytest.mark.parametrize("score", [None, NAN, float("inf")])
def test_a_score_that_is_no_number_refuses_the_group(score):
    with pytest.raises(RowRefused) as refusal:
        convert(group((sequence(),), score=score))
    assert refusal.value.reason == "score"


def test_a_sequence_must_be_shorter_than_the_limit():
    [post] = convert(group((sequence(),)))
    check_fits(post, TrainerLimits(8, 4))
    check_fits(post, TrainerLimits(8, 0))  # no bound
    with pytest.raises(RowRefused, match="3 tokens, the trainer takes fewer than 3"):
        check_fits(post, TrainerLimits(8, 3))


@pytest.mark.parametrize(
    ("group_size", "groups"), [(8, 6), (1, 48), (16, 3), (3, 0), (6, 0), (32, 0), (64, 0), (0, 0)]
)
def test_only_powers_of_two_that_divide_the_batch_make_batches(group_size, groups):
    assert TrainerLimits(48, 1000).groups_per_batch(group_size) == groups


def test_what_a_sink_counted_can_be_said_as_json():
    counts = AtroposCounts(posts=3)
    counts.refused["no_tokens"] += 2
    assert json.loads(json.dumps(counts.summary())) == {
        "posts": 3,
        "sent_again": 0,
        "adopted": 0,
        "acknowledged": 0,
        "refused": {"no_tokens": 2},
        "dropped": {},
        "registrations": 0,
        "untrained_tokens": 0,
    }
