"""The body codec: exact, compact, and honest about what it cannot read."""

from __future__ import annotations

import json
import struct

import msgpack
import pytest
import zstandard
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
