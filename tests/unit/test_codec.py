"""The body codec: exact, compact, and honest about what it cannot read."""

from __future__ import annotations

import json
import random
import struct
import sys
from array import array

import msgpack
import pytest
import zstandard
from pydantic import TypeAdapter, ValidationError
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.errors import PayloadTooLarge, SchemaTooNew
from hermes_queue.models import (
    AttemptRecord,
    Failure,
    ScoredTrajectory,
    TokenSequence,
    Turn,
    Wire,
)


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
    body = zstandard.compress(msgpack.packb({"schema_version": 3}))
    with pytest.raises(SchemaTooNew, match="upgrade"):
        codec.decode_record(body)


def long_record(tokens):
    """A record of one turn and one sequence, with `tokens` random numbers in each array."""
    dice = random.Random(tokens)
    ids = [dice.randrange(150_000) for _ in range(tokens)]
    logprobs = array("f", [-dice.random() for _ in ids]).tolist()
    sequence = TokenSequence(ids=ids, loss_mask=(1,) * tokens, logprobs=logprobs)
    turn = Turn(prompt_ids=ids, completion_ids=ids, logprobs=logprobs)
    return make_record(make_job()).model_copy(update={"turns": (turn,), "sequences": (sequence,)})


def test_the_number_of_tokens_does_not_change_the_number_of_objects_of_a_record():
    """A record of many tokens costs memory copies, not Python objects."""

    def objects(tokens):
        body = codec.encode_record(long_record(tokens))
        before = sys.getallocatedblocks()
        record = codec.decode_record(body)
        made = sys.getallocatedblocks() - before
        assert codec.encode_record(record) == body
        return made

    objects(10)  # what the first call keeps
    assert objects(100_000) < objects(10) + 50


def test_a_record_takes_few_bytes_and_a_token_less_than_nine():
    """A token's id is in the record three times here, its logprob twice."""
    assert len(codec.encode_record(make_record(make_job()))) < 400
    small, large = (len(codec.encode_record(long_record(n))) for n in (1000, 2000))
    assert large - small < 1000 * 9


def test_long_prompts_that_repeat_the_one_before_are_stored_once():
    ids = tuple(random.Random(0).choices(range(150_000), k=160_000))
    turns = tuple(Turn(prompt_ids=ids[: 150_000 + n]) for n in (0, 5_000, 10_000))
    record = make_record(make_job()).model_copy(update={"turns": turns})
    body = codec.encode_record(record)
    assert len(body) < 4 * len(ids)
    assert codec.decode_record(body) == record


def test_every_field_of_a_sequence_is_written():
    made = TokenSequence(
        ids=(1, 2), loss_mask=(0, 1), logprobs=(0.0, -0.5), turns=(0, 2), branch="side"
    )
    assert not set(TokenSequence.model_fields) - made.model_fields_set
    record = make_record(make_job()).model_copy(update={"schema_version": 2, "sequences": (made,)})
    assert codec.decode_record(codec.encode_record(record)).sequences == (made,)


def hashable(value):
    try:
        hash(value)
    except TypeError:
        return False
    return True


def wire_models(base=Wire):
    return [base, *(below for model in base.__subclasses__() for below in wire_models(model))]


def test_no_model_has_a_default_that_is_copied_for_each_record():
    """pydantic copies what has no hash, in Python; that took most of the validation of a record."""
    copied = {
        f"{model.__name__}.{name}"
        for model in wire_models()
        for name, field in model.model_fields.items()
        if not hashable(field.default)
    }
    assert copied == set()


def body_of(**changes):
    fields = {"schema_version": 1, **make_record(make_job()).model_dump(exclude_defaults=True)}
    return zstandard.compress(msgpack.packb({**fields, **changes}))


def sequence_of(ids):
    return [{"ids": ids, "loss_mask": [1], "logprobs": [-0.5]}]


def test_a_writer_that_packs_no_arrays_is_read():
    assert codec.decode_record(body_of()) == make_record(make_job())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sequences": sequence_of(msgpack.ExtType(1, bytes(5)))}, "5 bytes"),
        ({"sequences": sequence_of(msgpack.ExtType(2, bytes(4)))}, "instead of"),
        ({"sequences": sequence_of(msgpack.ExtType(9, bytes(4)))}, "extension type 9"),
        ({"sequences": sequence_of(["x"])}, "sequences.0.ids"),
        ({"sequences": msgpack.ExtType(1, bytes(4))}, "sequences"),
        ({"report": {"x": msgpack.ExtType(1, bytes(4))}}, "outside the fields"),
        ({"report": {"x": {msgpack.ExtType(1, bytes(4)): 1}}}, "outside the fields"),
    ],
)
def test_an_array_of_a_wrong_type_length_or_place_is_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        codec.decode_record(body_of(**changes))


def nested(levels, value=1):
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("field", ["report", "events", "tools", "attempts"])
@pytest.mark.parametrize(
    "value",
    [nested(300), nested(2000), {"at": msgpack.Timestamp(1)}, {"raw": b"\xff"}, {"s": {1}}, {1: 2}],
    ids=["deep", "bottomless", "time", "bytes", "set", "key"],
)
def test_what_json_cannot_hold_is_refused_before_it_is_stored(field, value):
    failure = Failure(cause="sandbox", stage="setup", type="SandboxError", message="gone")
    attempt = AttemptRecord(attempt=1, epoch=1, failure=failure)
    update = {
        "report": value,
        "events": (value,),
        "tools": (value,),
        "attempts": (attempt.model_copy(update={"events": (value,)}),),
    }
    record = make_record(make_job()).model_copy(update={field: update[field]})
    with pytest.raises((ValueError, TypeError)):
        codec.encode_record(record)


@pytest.mark.parametrize("levels", range(244, 257))
def test_whatever_is_stored_can_be_written_as_json(levels):
    record = make_record(make_job()).model_copy(update={"events": (nested(levels),)})
    try:
        body = codec.encode_record(record)
    except ValueError:
        assert levels > 244
        return
    assert levels < 256
    TypeAdapter(list[list[ScoredTrajectory]]).dump_json([[codec.decode_record(body)]])


def test_a_map_with_a_list_as_key_is_no_record():
    with pytest.raises(ValueError, match="not a record body"):
        codec.decode_record(zstandard.compress(b"\x81\x90\x01"))


def test_a_body_that_declares_more_than_readers_take_is_refused_unread(monkeypatch):
    body = body_of()
    monkeypatch.setattr(codec, "MAX_DECODED_BYTES", 100)
    with pytest.raises(PayloadTooLarge, match="more than 100 bytes"):
        codec.decode_record(body)


def test_a_body_that_does_not_declare_its_size_is_refused():
    writer = zstandard.ZstdCompressor(write_content_size=False)
    with pytest.raises(ValueError, match="not a record body"):
        codec.decode_record(writer.compress(zstandard.decompress(body_of())))


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
