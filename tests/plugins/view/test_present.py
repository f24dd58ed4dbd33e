"""What is shown of a record: everything that it says, whatever its shape, and nothing hidden."""

from __future__ import annotations

import json
import random
import struct
import sys
import unicodedata
from importlib import import_module
from typing import Any

import pytest
from strange_records import nearly, record, text

from hermes_plugins.view import present
from hermes_plugins.view.compare import compare, patch_against
from hermes_plugins.view.present import conversation, texts
from hermes_plugins.view.present.conversation import _Turns as Turns
from hermes_plugins.view.present.texts import MARKS_MOST, text_of
from hermes_queue.terminal.escapes import visible
from hermes_queue.wire.arrays import PackedArray

CALL = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": ""}}
CALL["function"] = {"name": "terminal", "arguments": '{"command": "pytest -x", "timeout_s": 5}'}
PATCH = """diff --git a/src/a.py b/src/a.py
index 1..2 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,2 +1,2 @@ def f():
 same
-old
+--- new
diff --git a/tests/test_a.py b/tests/test_a.py
new file mode 100644
--- /dev/null
+++ b/tests/test_a.py
@@ -0,0 +1 @@
+x
\\ No newline at end of file
diff --git a/old name.py b/new.py
similarity index 100%
rename from old name.py
rename to new.py
diff --git "a/\\303\\251.png" "b/\\303\\251.png"
Binary files differ
"""


def sound() -> dict[str, Any]:
    """A record as a worker writes it, with a bit of everything."""
    return {
        "schema_version": 1,
        **{"run_id": "r", "group_id": "r.g", "trajectory_id": "r.g.5", "sample_index": 5},
        **{"group_size": 8, "env": "swe_smith", "instance_id": "i-0413", "attempt": 2, "epoch": 2},
        "agent": {"kind": "openai", "model": "qwen3-8b", "sampling": {"temperature": 1.0}},
        **{"status": "completed", "stop_reason": "submitted", "score": 0.0, "cost_usd": 0.01},
        "policy_oldest": "11",
        "policy_newest": "12",
        "messages": [
            {"role": "system", "content": "You repair code."},
            {"role": "user", "content": "The bug: …"},
            {"role": "assistant", "reasoning": "hm", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "[exit code 1]\n\x1b[31mred\x1b[0m"},
            {"role": "assistant", "content": "done"},
        ],
        "events": [{"turn": 1, "event": "context_rewrite", "messages": [3]}],
        "turns": [
            {"prompt_ids": [1, 2], "completion_ids": [3], "latency_s": 4.1, "policy_version": "11"},
            {"prompt_ids": [1, 2, 3, 4], "completion_ids": [5, 6], "usage": {"prompt_tokens": 4}},
        ],
        "sequences": [
            {
                "ids": [1, 2, 3, 4, 5, 6],
                "loss_mask": [0, 0, 1, 0, 1, 1],
                "logprobs": [0.0, 0.0, -0.5, 0.0, -1.0, -3.0],
            }
        ],
        "attempts": [{"attempt": 1, "epoch": 1, "failure": {"cause": "sandbox", "stage": "setup"}}],
        "stage_seconds": {"agent": 40.0, "setup": 2.0, "odd": 1.0},
        "usage": {"prompt_tokens": 100, "completion_tokens": 20},
        "report": {
            "reason": "tests_fail",
            "patch": PATCH,
            "patch_bytes": len(PATCH),
            "dropped": ["tests/x.py"],
            "dropped_count": 1,
            "first_failure": "AssertionError",
            "output_tail": "E  assert 1",
            "test_runs": 1,
            "tests_status": {
                "FAIL_TO_PASS": {
                    **{"success": 1, "failure": 1, "not_run": 0},
                    "failing": {"tests/test_a.py::test_b": "failed"},
                }
            },
        },
    }


def everything(raw: dict[Any, Any]) -> list[Any]:
    """All that can be shown of a record."""
    parts = [present.head, present.stages, present.events, present.attempts, present.outline]
    parts += [present.messages, present.patch, present.verifier, present.report, present.sequences]
    shown: list[Any] = [part(raw) for part in parts]
    shown += [present.message(raw, n) for n in range(3)]
    shown += [
        present.branches(raw),
        *(present.messages(b) for b in [present.of_branch(raw, 0)] if b),
    ]
    shown += [present.sequence_turns(raw, n) for n in range(2)]
    octets = present.tokens(raw, 0)
    assert octets is None or len(octets) % 9 == 0
    return shown


def strings(value: Any) -> list[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(found for each in value.values() for found in strings(each))]
    return [found for each in value for found in strings(each)] if isinstance(value, list) else []


def is_harmless(shown: str) -> bool:
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return not any(unicodedata.category(c) in hidden and c not in "\n\t" for c in shown)


# --- texts --------------------------------------------------------------------------------


def test_every_character_that_would_deceive_becomes_a_visible_sign():
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        category = unicodedata.category(character)
        if category in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in "\n\t":
            shown = visible(f"a{character}b")
            assert is_harmless(shown)
            assert len(shown) > 2
            assert shown != f"a{character}b"


def test_a_long_text_has_the_same_signs_as_a_short_one():
    characters = [*map(chr, range(0x11000)), "\r\n", "\ufe0f\ufe0e", "\U000e0041"]
    assert visible("x".join(characters)) == "x".join(map(visible, characters))


@pytest.mark.parametrize(
    ("written", "shown", "marks"),
    [
        ("plain é", "plain é", []),
        ("\x1b[31mred\x1b[0m.", "red.", [(0, 3, "ansi-fg-1")]),
        ("😀\x1b[1;92mx", "😀x", [(2, 3, "ansi-bold"), (2, 3, "ansi-fg-10")]),
        ("\x1b[38;5;196;1mx\x1b[22my", "xy", None),
        ("\x1b[30;40mhidden", "hidden", [(0, 6, "ansi-fg-0")]),
        ("\x1b[8mhidden", "hidden", []),
        ("\x1b[2Kx", "␛[2Kx", [(0, 4, "ctl")]),
        ("\x1b]0;title\x07", "␛]0;title␇", [(0, 1, "ctl"), (9, 10, "ctl")]),
        ("a\u202eb", "a⟨U+202E⟩b", [(1, 9, "ctl")]),
        ("\ud800\u200b", "\ufffd⟨U+200B⟩", [(0, 9, "ctl")]),
        ("\x00" * 1000, "⟨␀ x1000⟩", [(0, 9, "ctl")]),
        ("one\r\ntwo", "one\ntwo", []),
        ("10%\r20%", "10%␍\n20%", [(3, 5, "ctl")]),
        ("❤\ufe0f", "❤\ufe0f", []),
    ],
)
def test_colours_become_marks_and_controls_signs(written, shown, marks):
    found = text_of(written)
    assert found["text"] == shown
    assert marks is None or found["marks"] == marks


def test_colours_of_every_palette_become_one_of_sixteen():
    for parameters, colour in (("38;5;1", 1), ("38;2;250;5;5", 9), ("38:2::0:0:0", 0), ("97", 15)):
        assert text_of(f"\x1b[{parameters}mx")["marks"] == [(0, 1, f"ansi-fg-{colour}")]
    assert text_of("\x1b[38;5;999mx")["marks"] == text_of("\x1b[38;7;1;mx")["marks"] == []


def test_marks_of_random_texts_are_within_them_and_no_control_remains():
    rng = random.Random(18)
    for _ in range(400):
        written = text(rng)
        found = text_of(written, cut_bytes=rng.choice([5, 20, 10_000]))
        units = len(found["text"].encode("utf-16-le")) // 2
        assert is_harmless(found["text"])
        assert found["bytes"] == len(written.encode(errors="surrogatepass"))
        assert found["marks"] == sorted(found["marks"], key=lambda mark: (mark[0], -mark[1]))
        for start, end, name in found["marks"]:
            part = found["text"].encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le")
            assert 0 <= start < end <= units
            assert part or name == "ctl"


def test_signs_are_found_at_the_same_places_by_a_search_for_their_beginnings():
    chance = random.Random(7)
    pieces = [
        "a",
        "é",
        "😀",
        "\n",
        "\t",
        "\r",
        "\r\n",
        "\x1b",
        "\x1b[",
        "\x1b[31m",
        "\x1b[2J",
        "\0",
    ]
    pieces += ["\ufe0f", "\ufe0f\ufe00", "\u200b", "\x7f", "\x85", "\ud800", "1;", "m", "["]
    for _ in range(500):
        some = pieces if chance.random() < 0.7 else [each for each in pieces if each.isascii()]
        written = "".join(chance.choices(some, k=12))
        expected = [found.span() for found in texts._SPECIAL.finditer(written)]
        assert [found.span() for found in texts._specials(written)] == expected


def test_a_text_is_cut_between_characters_and_says_so():
    assert text_of("aé😀", 3) == {"text": "aé", "bytes": 7, "cut": True, "marks": []}
    assert text_of("aé😀", 6)["text"] == "aé"
    assert text_of("aé😀", 7) == {"text": "aé😀", "bytes": 7, "cut": False, "marks": []}
    assert text_of("ab\x1b[31", 5)["text"] == "ab"


def test_a_text_of_nothing_but_marks_has_a_bounded_number_of_them():
    found = text_of("\x1b[31ma\x1b[0m\u202e" * 20_000)
    assert len(found["marks"]) <= MARKS_MOST + 8
    assert found["text"] == "a⟨U+202E⟩" * 20_000
    for piece, shown in (("a\x1b[2K", "a␛[2K"), ("\x1b[31ma", "a"), ("a\r", "a␍\n")):
        found = text_of(piece * 20_000)
        assert len(found["marks"]) <= MARKS_MOST + 8
        assert found["text"] == shown * 20_000


# --- records ------------------------------------------------------------------------------


def test_no_shape_of_a_record_raises_and_all_that_is_shown_is_json_without_controls():
    rng = random.Random(18)
    records = [record(rng) for _ in range(120)] + [nearly(rng, sound()) for _ in range(250)]
    for raw in records:
        shown = json.loads(json.dumps(everything(raw), allow_nan=False))
        assert all(map(is_harmless, strings(shown)))
    for first in range(0, len(records), 4):
        group = compare(records[first : first + 4])
        shown = json.loads(json.dumps(group, allow_nan=False))
        assert all(map(is_harmless, strings(shown)))
        json.dumps(patch_against(*records[first : first + 2]), allow_nan=False)


def test_a_message_knows_its_tool_its_turn_and_its_exit_code():
    shown = present.messages(sound())
    assert [each["kind"] for each in shown] == ["text", "text", "call", "error", "text"]
    [call] = shown[2]["calls"]
    assert (call["name"], call["command"]["text"]) == ("terminal", "pytest -x")
    assert (shown[3]["name"], shown[3]["exit"], shown[3]["flags"]) == ("terminal", 1, ["error"])
    turns = [each["turn"] and each["turn"]["n"] for each in shown]
    assert turns == [None, None, 0, None, 1]
    assert shown[2]["turn"]["seconds"] == 4.1


def test_replies_that_were_part_of_the_prompt_have_no_turn():
    raw = sound()
    raw["messages"] = [{"role": "assistant", "content": "an example"}, *raw["messages"]]
    turns = [each["turn"] and each["turn"]["n"] for each in present.messages(raw)]
    assert turns == [None, None, None, 0, None, 1]


def test_turns_of_a_program_are_those_of_its_nodes():
    raw = sound()
    raw["nodes"] = [
        {"message": raw["messages"][0]},
        {"parent": 0, "message": raw["messages"][1]},
        {"parent": 1, "message": raw["messages"][2], "turn": 1},
        {"parent": 2, "message": raw["messages"][3]},
        {"parent": 3, "message": raw["messages"][4], "turn": 0},
        {"message": {"role": "assistant", "content": "done"}, "turn": 1},  # of a side conversation
    ]
    turns = [each["turn"] and each["turn"]["n"] for each in present.messages(raw)]
    assert turns == [None, None, 1, None, 0]


def test_a_name_that_is_no_text_is_shown_in_short_however_deep_or_long_it_is():
    deep: Any = 1
    for _ in range(1015):
        deep = [deep]
    wide = {f"k{n}": list(range(10_000)) for n in range(1000)}
    for value in (deep, wide, [deep, wide], b"x" * 10_000, PackedArray("i", bytes(40_000))):
        raw = {**sound(), "status": value, "report": {"reason": value, "flags": [value]}}
        raw["messages"] = [{"role": value, "tool_calls": [{"id": value}]}]
        shown = [present.head(raw)["status"], present.verifier(raw)["reason"]]
        shown += [each["role"] for each in (*present.messages(raw), *present.outline(raw))]
        assert all(0 < len(each) <= 201 for each in shown)
    assert present.label({"a": [1, None]}) == "{'a': [1, None]}"


def test_turns_are_looked_for_once_for_all_messages(monkeypatch):
    made = []
    monkeypatch.setattr(conversation, "_Turns", lambda *given: made.append(1) or Turns(*given))
    raw = sound()
    each = list(present.each_message(raw, cut_bytes=None))
    assert made == [1]
    assert each == [present.message(raw, n) for n in range(5)]


def test_messages_come_in_pages_that_end_with_their_bytes():
    raw = {"messages": [{"role": "user", "content": "x" * 1000} for _ in range(50)]}
    pages, start = [], 0
    while page := present.messages(raw, start, cut_bytes=500, total_bytes=4000):
        pages.append(len(page))
        start = page[-1]["n"] + 1
    assert sum(pages) == 50
    assert max(pages) == 7
    assert present.message(raw, 49)["content"]["bytes"] == 1000
    assert present.message(raw, 50) is None


def test_an_event_stands_before_the_message_of_its_turn():
    [event] = present.events(sound())
    assert (event["event"], event["at"], event["details"]) == (
        "context_rewrite",
        4,
        {"messages": [3]},
    )


def test_stages_are_in_the_order_in_which_they_happen():
    assert [each["stage"] for each in present.stages(sound())] == ["setup", "agent", "odd"]


# --- patch, verifier, tokens --------------------------------------------------------------


def test_a_patch_is_read_file_by_file():
    shown = present.patch(sound())
    facts = [
        (f["path"], f["old_path"], f["kind"], f["test"], f["added"], f["removed"])
        for f in shown["files"]
    ]
    assert facts == [
        ("src/a.py", None, "changed", False, 1, 1),
        ("tests/test_a.py", None, "added", True, 1, 0),
        ("new.py", "old name.py", "renamed", False, 0, 0),
        ("é.png", None, "binary", False, 0, 0),
    ]
    lines = shown["files"][0]["hunks"][0]["lines"]
    assert [(sign, line["text"]) for sign, line in lines] == [
        (" ", "same"),
        ("-", "old"),
        ("+", "--- new"),
    ]
    assert (shown["bytes"], shown["cut"], shown["text"]) == (len(PATCH.encode()), False, None)


def test_a_patch_of_which_the_record_has_only_the_beginning_is_marked_as_cut():
    raw = sound()
    raw["report"]["patch_bytes"] = len(PATCH) + 1
    assert present.patch(raw)["cut"]


def test_what_is_no_diff_is_shown_as_it_is():
    shown = present.patch({"report": {"patch": "I did\nnothing"}})
    assert (shown["files"], shown["text"]["text"]) == ([], "I did\nnothing")


def test_the_plain_format_of_diff_is_read_too():
    plain = (
        "--- a.py\t2026\n+++ a.py\t2026\n@@ -1 +1 @@\n-x\n+y\n--- b\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"
    )
    shown = present.patch({"report": {"patch": plain}})
    assert [(f["path"], f["added"], f["removed"]) for f in shown["files"]] == [
        ("a.py", 1, 1),
        ("b", 1, 1),
    ]


def test_a_report_is_shown_in_parts_and_nothing_of_it_is_lost():
    shown = present.verifier(sound())
    assert (shown["reason"], shown["failed"]) == ("tests_fail", ["tests/test_a.py::test_b"])
    assert shown["passed"] is None
    assert shown["counts"] == {"FAIL_TO_PASS": {"passed": 1, "failed": 1, "not_run": 0}}
    assert (shown["dropped"], shown["output"]["text"]) == (["tests/x.py"], "E  assert 1")
    assert shown["rest"] == {"patch_bytes": len(PATCH), "test_runs": 1}
    odd = {"report": {"flags": {"a": 1}, "dropped": "x", "tests_status": 7, "output": "b"}}
    odd["report"]["output_tail"] = "a"
    shown = present.verifier(odd)
    assert shown["output"]["text"] == "a"
    assert shown["rest"] == {"flags": {"a": 1}, "dropped": "x", "tests_status": 7, "output": "b"}


def test_tests_that_name_themselves_are_shown_too():
    tests = {
        "source": "ctrf",
        "passed": {"names": ["a", "b"], "more": 3},
        "failed": {"names": ["c"]},
    }
    shown = present.verifier({"report": {"tests": tests}})
    assert (shown["failed"], shown["passed"], shown["rest"]) == (["c"], ["a", "b"], {})
    assert shown["counts"] == {"tests": {"passed": 5, "failed": 1, "not_run": None}}


def test_tokens_are_octets_of_ids_mask_and_logprobs():
    octets = present.tokens(sound(), 0)
    assert struct.unpack("<6i6B6f", octets) == (
        *(1, 2, 3, 4, 5, 6),
        *(0, 0, 1, 0, 1, 1),
        *(0.0, 0.0, -0.5, 0.0, -1.0, -3.0),
    )
    [facts] = present.sequences(sound())
    assert (facts["ids"], facts["trained"]) == (6, 3)
    assert (facts["mean_logprob"], facts["min_logprob"]) == (-1.5, -3.0)


def test_each_turn_has_its_place_in_the_sequence():
    turns = present.sequence_turns(sound(), 0)
    assert [(t["turn"], t["start"], t["length"], t["trained"], t["policy"]) for t in turns] == [
        (0, 2, 1, True, "11"),
        (1, 4, 2, True, None),
    ]
    raw = sound() | {"turns": []}
    assert [(t["turn"], t["start"], t["length"]) for t in present.sequence_turns(raw, 0)] == [
        (None, 2, 1),
        (None, 4, 2),
    ]


def test_a_turn_that_a_sequence_names_often_is_looked_for_once(monkeypatch):
    places = []
    module = import_module("hermes_plugins.view.present.tokens")
    place = module._place
    monkeypatch.setattr(module, "_place", lambda *given: places.append(1) or place(*given))
    raw = sound()
    raw["sequences"] = [{"ids": [1, 2], "loss_mask": [0, 1], "turns": [0] * 5000}]
    present.sequence_turns(raw, 0)
    assert len(places) == 1


def test_a_turn_with_another_prompt_is_in_another_sequence():
    raw = sound()
    raw["turns"][0]["prompt_ids"] = [9, 9]
    assert [turn["turn"] for turn in present.sequence_turns(raw, 0)] == [1]


def test_other_conversations_of_a_program_are_shown_like_its_main_one():
    def said(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": text}

    raw = {
        "messages": [said("user", "task"), said("assistant", "done")],
        "turns": [{"branch": 0}, {"branch": 1}, {"branch": 1, "latency_s": 2.0}],
        "branches": [
            {"label": "main", "root": 0, "leaf": 0},
            {"label": "sub_agent", "root": 1, "leaf": 2},
        ],
        "nodes": [
            {"message": said("user", "task")},
            {"message": said("assistant", "done"), "parent": 0, "turn": 0},
            {"message": said("user", "look")},
            {"message": said("assistant", "same"), "parent": 2, "turn": 1},
            {"message": said("user", "more"), "parent": 3},
            {"message": said("assistant", "same"), "parent": 4, "turn": 2},
            {"message": said("tool", "end"), "parent": 5},
        ],
    }
    shown = present.branches(raw)
    assert [(each["label"], each["turns"], each["messages"]) for each in shown] == [
        ("main", 1, 2),
        ("sub_agent", 2, 5),
    ]
    own = present.of_branch(raw, 1)
    told = present.messages(own)
    assert [each["content"]["text"] for each in told] == ["look", "same", "more", "same", "end"]
    assert [each["turn"] and each["turn"]["n"] for each in told] == [None, 1, None, 2, None]
    assert present.of_branch(raw, 2) is None


def test_a_logprob_that_is_no_number_spoils_neither_mean_nor_least():
    raw = {"sequences": [{"ids": [1, 2], "loss_mask": [1, 1], "logprobs": [-1.0, float("nan")]}]}
    [facts] = present.sequences(raw)
    assert (facts["mean_logprob"], facts["min_logprob"]) == (-1.0, -1.0)
