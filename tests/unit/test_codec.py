"""The body codec: exact, compact, and honest about what it cannot read."""

from __future__ import annotations

import json
import struct

import msgpack
import pytest
import zstandard
from pydantic import ValidationError
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.errors import SchemaTooNew
from hermes_queue.models import Turn


def test_a_record_comes_back_bit_for_bit():
    record = make_record(make_job())
    assert codec.decode_record(codec.encode_record(record)) == record


def test_logprobs_that_are_float32_survive_exactly():
    values = tuple(struct.unpack("<f", struct.pack("<f", -x / 7))[0] for x in range(100))
    record = make_record(make_job()).model_copy(
        update={"turns": (Turn(completion_ids=tuple(range(100)), logprobs=values),)}
    )
    [turn] = codec.decode_record(codec.encode_record(record)).turns
    assert turn.logprobs == values


def test_turns_without_ids_stay_without():
    record = make_record(make_job()).model_copy(update={"turns": (Turn(),), "sequences": None})
    decoded = codec.decode_record(codec.encode_record(record))
    assert decoded.turns[0].prompt_ids is None
    assert decoded.sequences is None


def test_a_token_id_beyond_int32_is_refused_not_wrapped():
    record = make_record(make_job()).model_copy(update={"turns": (Turn(prompt_ids=(2**31,)),)})
    with pytest.raises(OverflowError):
        codec.encode_record(record)


def test_text_that_is_no_record_is_a_value_error():
    with pytest.raises(ValueError, match="not a record body"):
        codec.decode_record(b"junk")


def test_a_newer_record_asks_for_an_upgrade():
    body = zstandard.compress(msgpack.packb({"schema_version": 2}))
    with pytest.raises(SchemaTooNew, match="upgrade"):
        codec.decode_record(body)


def test_a_job_comes_back_and_leaves_defaults_out():
    job = make_job(priority=0)
    data = codec.encode_job(job)
    assert codec.decode_job(data) == job
    assert "limits" not in json.loads(data)


def test_a_newer_job_asks_for_an_upgrade():
    data = {**json.loads(codec.encode_job(make_job())), "schema_version": 7, "novel": True}
    with pytest.raises(SchemaTooNew, match="schema_version 7"):
        codec.decode_job(json.dumps(data))


def test_equal_rows_have_equal_bytes_whatever_their_key_order():
    assert codec.encode_item({"a": 1, "b": "ü"}) == codec.encode_item({"b": "ü", "a": 1})


def test_an_item_comes_back():
    item = {"text": "x" * 5000, "n": [1, None]}
    assert codec.decompress_item(codec.compress_item(codec.encode_item(item))) == item


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"agent": {"sampling": {"seed": 2**64}}}, r"agent\n.*sampling.seed is an integer of more"),
        ({"agent": {"params": {"a": [{"b": -(2**70)}]}}}, r"params.a.0.b is an integer of more"),
        ({"agent": {"params": {"a": json.loads("[" * 99 + "]" * 99)}}}, "params.a.0.*is nested"),
        ({"limits": {"max_tokens": 2**70}}, r"limits.max_tokens"),
        ({"limits": {"observation_bytes": 2**60}}, r"limits.observation_bytes"),
        ({"group_policy": {"max_policy_lag": 10**400}}, r"group_policy.max_policy_lag"),
    ],
)
def test_a_job_whose_numbers_no_record_could_hold_is_refused_by_name(fields, expected):
    with pytest.raises(ValidationError, match=expected):
        make_job(**fields)


def test_a_job_may_hold_any_integer_of_64_bits():
    sampling = {"seed": 2**64 - 1, "other": -(2**63)}
    record = make_record(make_job(agent={"sampling": sampling}))
    assert codec.decode_record(codec.encode_record(record)).agent.sampling == sampling


def test_a_job_that_is_nested_without_end_is_no_job():
    with pytest.raises(ValueError, match="nested"):
        codec.decode_job(b"[" * 100_000)
