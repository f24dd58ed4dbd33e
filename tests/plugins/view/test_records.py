"""Records are read without validation, and no shape of one ends the list they are in."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from dataclasses import replace

import msgpack
import pytest
import zstandard
from records import make_job, make_record

from hermes_plugins.view.records import raw as reading
from hermes_plugins.view.records.containing import holds_all
from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.raw import UnreadableRecord, decode_json, decode_raw
from hermes_plugins.view.records.rows import IndexRow, row_of
from hermes_plugins.view.records.texts import searchable_text, words_of
from hermes_plugins.view.sources.entries import record_of_summary
from hermes_queue.bodies.codec import encode_record
from hermes_queue.bodies.summary import summary_of
from hermes_queue.sinks.selection import tampered
from hermes_queue.wire.arrays import PackedArray

HERE = Location("archive-1", "run/1.groups", 22, 100, "run.g.0")


def frame(data: object) -> bytes:
    return zstandard.compress(msgpack.packb(data))


def test_a_body_is_unpacked_with_its_arrays_packed():
    record = make_record(make_job(), policy="12")
    found = decode_raw(encode_record(record))
    assert found["trajectory_id"] == record.trajectory_id
    assert isinstance(found["sequences"][0]["ids"], PackedArray)
    assert list(found["turns"][0]["completion_ids"]) == [3, 4]


def test_the_row_of_a_body_and_of_its_json_are_the_same():
    record = make_record(make_job(), score=None)
    packed = row_of(decode_raw(encode_record(record)), HERE)
    assert packed == row_of(decode_json(record.to_json().encode()), HERE)
    assert (packed.status, packed.cause, packed.stage) == ("failed", "sandbox", "setup")
    assert (packed.score, packed.turns, packed.messages) == (None, 1, 2)
    assert record.failure
    assert packed.reason == record.failure.message


@pytest.mark.parametrize("score", [0.5, None])
def test_the_summary_of_a_record_makes_the_row_that_the_record_makes(score):
    report = {
        "reason": "tests_fail",
        "patch_bytes": 812,
        "dropped_count": 2,
        "tests_status": {"FAIL_TO_PASS": {"failure": 2}, "PASS_TO_PASS": {"failure": 1}},
        "flags": ["calls: conftest"],
    }
    usage = {"prompt_tokens": 30, "completion_tokens": 12}
    record = make_record(make_job(), score=score, policy="12")
    record = record.model_copy(
        update={"report": report, "usage": record.usage.model_copy(update=usage)}
    )
    whole = decode_raw(encode_record(record))
    names = ("trajectory_id", "run_id", "env", "instance_id", "group_id", "group_size")
    known = {name: whole[name] for name in names}
    summed_up = row_of({**known, **record_of_summary(json.loads(summary_of(record)))}, HERE)
    row = row_of(whole, HERE)
    assert (row.tests_failed, row.patch_bytes) == (3, 812)
    assert "calls: conftest" in row.flags
    # The tools' names are in no summary, and times are rounded in it.
    same = {"tools": row.tools, "created": row.created, "finished": row.finished}
    assert replace(summed_up, **same) == row
    assert summed_up.created == pytest.approx(row.created, abs=1e-3)


def test_without_numbers_only_the_long_lists_of_numbers_are_missing():
    line = json.dumps({"a": list(range(300)), "b": [1.5, 2], "c": "[" + "1," * 200 + "1]"}).encode()
    assert decode_json(line, numbers=False) == {"a": [], "b": [1.5, 2], "c": "[]"}
    assert len(decode_json(line)["a"]) == 300


DEEP = b"\x91" * 5000 + b"\xc0"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not a record body"),
        (b"no zstd", "not a record body"),
        (frame([1]), "not a record: a list"),
        (frame({"schema_version": 3}), "newer hermes-queue.*upgrade"),
        (zstandard.compress(DEEP), "not a record body"),
        (zstandard.compress(b"\xdf\xff\xff\xff\xff"), "not a record body"),
        (zstandard.compress(b"\x81\x91\x01\x01"), "not a record body"),
        (frame({"a": msgpack.ExtType(9, b"x")}), "extension type 9"),
        (frame({"a": msgpack.ExtType(1, b"xxx")}), "no whole numbers"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"\x80"), "its size"),
    ],
)
def test_bytes_that_are_no_record_say_why(body, problem):
    with pytest.raises(UnreadableRecord, match=problem):
        decode_raw(body)


def test_a_body_that_unpacks_to_too_much_says_so():
    with pytest.raises(UnreadableRecord, match="bytes unpacked, of which"):
        decode_raw(zstandard.compress(b"\x80" + bytes(200 << 20)))


def test_a_few_bytes_that_name_long_lists_in_each_other_do_not_take_their_memory():
    heads = b"\x81\xa1a" + b"\xdd\x00\x20\x00\x00" * 500
    body = zstandard.compress(heads + b"\xc0" * (2 << 20))
    tracemalloc.start()
    with pytest.raises(UnreadableRecord, match="exceeds max_array_len"):
        decode_raw(body)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 << 20


def test_a_record_of_very_many_elements_is_refused_before_it_takes_the_memory(monkeypatch):
    monkeypatch.setattr(reading, "MAX_ELEMENTS", 1000)
    with pytest.raises(UnreadableRecord, match="more than 1000 elements"):
        decode_raw(frame({"a": [[]] * 2000}))
    with pytest.raises(UnreadableRecord, match="more than 1000 elements"):
        decode_json(b'{"a": [' + b"0," * 2000 + b"0]}")


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"1", b"", b"[" * 100_000, b'{"a":' + b"9" * 100_000 + b"}", b"{} {}"],
)
def test_a_line_that_is_no_record_says_so(line):
    with pytest.raises(UnreadableRecord):
        decode_json(line)


def test_half_a_surrogate_pair_and_bytes_that_are_no_text_are_read():
    assert decode_json(b'{"a": "\\ud800x"}') == {"a": "\ud800x"}
    assert decode_json(b'{"a": "\xffx"}') == {"a": "\ufffdx"}
    assert decode_raw(zstandard.compress(b"\x81\xa1a\xa2\xffx")) == {"a": "\ufffdx"}


STRANGE = [
    None, True, -1, 2**70, math.nan, math.inf, 1e308, "", "x" * 100_000, "\ud800\0\n", b"\xff",
    [], {}, [[]] * 40, {"a": {"b": {}}}, {1: 2}, [None, 7, {"role": 5}], range(3),
    [{"role": "user", "content": ["a"]}, {"tool_calls": [{"function": {"name": 5}}, 5, {}]}],
]  # fmt: skip
FIELDS = (
    *("trajectory_id", "run_id", "score", "status", "agent", "failure", "tool_calls", "usage"),
    *("messages", "turns", "stage_seconds", "report", "cost_usd", "created", "sample_index"),
)


def test_a_field_of_any_type_is_a_row():
    whole = decode_raw(encode_record(make_record(make_job(), score=None)))
    chance = random.Random(3)
    for field in FIELDS:
        for value in STRANGE:
            check(row_of({**whole, field: value}, HERE), {**whole, field: value})
            inner = {"flags": [value, "x"], "reason": value, "tests_status": {"a": value}}
            inner |= {"tests": {"failed": {"names": value, "more": value}}, "patch": value}
            nested = {**whole, "report": {**inner, "dropped_count": value, "patch_bytes": value}}
            nested["stage_seconds"] = {"agent": value, "setup": value}
            nested["messages"] = [{"role": "user", "content": value, "tool_calls": value}]
            check(row_of(nested, HERE), nested)
            some = {field: chance.choice(STRANGE) for field in FIELDS}
            check(row_of(some, HERE), some)


def check(row: IndexRow, raw: dict) -> None:
    """Every column is of a type that SQLite takes, and bounded."""
    for name in IndexRow.__dataclass_fields__:
        value = getattr(row, name)
        assert value is None or isinstance(value, int | float | str)
        if isinstance(value, str):
            assert len(value.encode()) <= 32 * 90 * 4
            assert "\0" not in value
        elif value is not None:
            assert math.isfinite(value)
            assert abs(value) < 2**63 or isinstance(value, float)
    assert isinstance(searchable_text(raw), str)
    assert holds_all(raw, ["no such text"]) is False


@pytest.mark.parametrize("name", [None, 5, "", "x" * 257, "\ud800", "a\0b", ["x"]])
def test_a_record_without_a_usable_id_is_damaged_and_keeps_the_name_of_its_place(name):
    row = row_of({"trajectory_id": name, "status": "completed"}, HERE)
    assert (row.id, row.status) == ("run.g.0", "damaged")
    elsewhere = Location("jsonl-1", "a.jsonl", 5, 10)
    unnamed = row_of({"trajectory_id": name}, elsewhere)
    assert unnamed.id.startswith("damaged-")
    assert unnamed.id == row_of({}, elsewhere).id
    assert unnamed.id != row_of({}, Location("jsonl-1", "a.jsonl", 6, 10)).id


@pytest.mark.parametrize(
    ("report", "flags"),
    [
        ({}, []),
        ({"reason": "tests_fail"}, []),
        ({"reason": "canary"}, ["tampered", "canary"]),
        ({"reason": ["canary"]}, []),
        ({"dropped_count": 2}, ["tampered", "dropped_paths"]),
        ({"suspect": ["/bin/sh"]}, ["tampered", "suspect"]),
        ({"flags": ["patch: conftest", 7, "a\nb"]}, ["tampered", "patch: conftest", "a b"]),
    ],
)
def test_flags_are_those_of_the_report_and_what_a_clean_dataset_leaves_out(report, flags):
    row = row_of({"trajectory_id": "x", "report": report}, HERE)
    assert row.flags.split("\n")[1:-1] == flags
    record = make_record(make_job()).model_copy(update={"report": report})
    assert tampered(record) == ("tampered" in flags)


@pytest.mark.parametrize(
    ("report", "failed"),
    [
        ({}, None),
        ({"tests_status": {"FAIL_TO_PASS": {"failure": 2}, "PASS_TO_PASS": {"failure": 1}}}, 3),
        ({"tests": {"failed": {"names": ["a", "b"], "more": 3}}}, 5),
    ],
)
def test_failed_tests_are_counted_in_both_forms_of_a_report(report, failed):
    assert row_of({"trajectory_id": "x", "report": report}, HERE).tests_failed == failed


def test_the_words_are_those_of_task_answer_calls_failure_and_report_but_of_no_output():
    messages = [
        {"role": "system", "content": "system_word"},
        {"role": "user", "content": "The Task"},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": '{"c": "a\\nb grün"}'}}]},
        {"role": "tool", "content": "output_word"},
        {"role": "assistant", "content": "done_it"},
    ]
    report = {"reason": "tests_fail", "output_tail": "tail_word", "failing": {"t::one": "failed"}}
    failure = {"message": "SlotLost because"}
    raw = {"messages": messages, "report": report, "failure": failure}
    words = searchable_text(raw).split()
    assert {"the", "task", "done_it", "b", "slotlost", "tests_fail", "one"} <= set(words)
    assert words_of("GRÜN")[0] in words
    assert set(words).isdisjoint({"system_word", "output_word", "tail_word"})
    assert searchable_text(raw).isascii()
