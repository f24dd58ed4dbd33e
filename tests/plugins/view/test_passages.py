"""Findings of judges at the passages that they quote."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_plugins.view import findings as in_files
from hermes_plugins.view import present
from hermes_plugins.view.findings import FindingFiles
from hermes_queue.bodies.findings import TranscriptFinding, read_findings
from hermes_queue.bodies.signs import with_flags
from hermes_queue.errors import InputError
from hermes_queue.models import Message
from hermes_queue.tools.base import make_call

RAW: dict[str, Any] = {
    "trajectory_id": "t",
    "messages": [
        {"role": "user", "content": "Fix \U0001f600 it."},
        {
            "role": "assistant",
            "content": "I look",
            "reasoning": "the \x1b[31mred\x1b[0m one",
            "tool_calls": [
                {"id": "c", "function": {"name": "sh", "arguments": '{"command": "git log"}'}}
            ],
        },
    ],
    "report": {"patch": "--- a/x\n+++ b/x\n+import os\n"},
}


def finding(message: int | None, quote: str, label: str = "history") -> TranscriptFinding:
    return TranscriptFinding(
        trajectory_id="t", message=message, quote=quote, label=label, by="judge"
    )


@pytest.mark.parametrize(
    ("message", "quote", "place"),
    [
        (1, "git log", (1, "message")),
        (1, "", (1, "message")),
        (1, "\x1b[31mred", (1, "message")),
        (0, "git log", (0, "")),
        (7, "", (7, "")),
        (None, "", (None, "trajectory")),
        (None, "+import os", (None, "patch")),
        (None, "Fix", (0, "message")),
        (None, "nowhere", (None, "")),
    ],
)
def test_a_finding_has_the_place_of_its_quote_or_is_broken(message, quote, place):
    [found] = present.shown_findings(RAW, [finding(message, quote)])
    assert (found["message"], found["place"]) == place
    assert found["broken"] == (place[1] == "")


def test_the_passage_is_marked_in_utf_16_units_and_the_message_flagged():
    said = present.shown_findings(RAW, [finding(0, "it."), finding(1, "red"), finding(0, "gone")])
    first, second = present.with_passages(present.messages(RAW), said)
    assert first["content"]["marks"] == [(7, 10, "finding")]
    assert (4, 7, "finding") in second["reasoning"]["marks"]
    assert first["flags"] == ["history"]
    outlined = present.flagged_outline(present.outline(RAW), said)
    assert [each["flags"] for each in outlined] == [["history"], ["reasoning", "history"]]


def test_a_passage_in_arguments_is_marked():
    said = present.shown_findings(RAW, [finding(1, "git log")])
    [_, message] = present.with_passages(present.messages(RAW), said)
    assert message["calls"][0]["arguments"]["marks"] == [(13, 20, "finding")]


def test_a_quote_that_is_everywhere_marks_a_bounded_number_of_passages():
    raw = {"messages": [{"role": "user", "content": "a" * 1000}]}
    said = present.shown_findings(raw, [finding(0, "a")] * 5)
    [message] = present.with_passages(present.messages(raw), said)
    assert len(message["content"]["marks"]) == 20


@pytest.mark.parametrize("messages", [None, 3, "text", [None, 3, {"content": [1]}]])
def test_no_shape_of_a_record_raises(messages):
    raw = {"messages": messages, "report": 7}
    said = present.shown_findings(raw, [finding(0, "x"), finding(None, "x"), finding(2, "")])
    present.with_passages(present.messages(raw), said)
    assert said[1]["broken"]


def test_labels_of_a_judge_deceive_nobody():
    [found] = present.shown_findings(RAW, [finding(0, "", label="fine\u202e\x1b[2J")])
    assert "\u202e" not in found["label"]
    assert "\x1b" not in found["label"]


def test_files_of_findings_are_read_again_when_they_change(tmp_path: Path):
    path = tmp_path / "findings.jsonl"
    line = json.dumps({"trajectory_id": "t", "label": "a", "by": "j"})
    path.write_text(line + "\nno finding\n")
    files = FindingFiles([path])
    assert [each.label for each in files.of("t")] == ["a"]
    assert files.bad_lines == {path: 1}
    path.write_text(line + "\n" + line.replace('"a"', '"b"') + "\n")
    assert [each.label for each in files.of("t")] == ["a", "b"]
    path.unlink()
    assert len(files.of("t")) == 2
    assert files.of("other") == []
    with pytest.raises(InputError, match="cannot be read"):
        FindingFiles([path])


def test_findings_of_the_record_itself_are_shown_at_their_passages():
    """Those of patterns and of the job's judge, which quote the words of a call, not their JSON."""
    command = 'cd x\ncat > conftest.py <<E\n"a"\nE\ngit log --all'
    talk = [Message(role="assistant", tool_calls=(make_call("c", "terminal", command=command),))]
    report = with_flags({"patch": "--- a/tests/x.py\n+++ b/tests/x.py\n"}, talk)
    quoted = {"message": 0, "quote": 'E\n"a"', "label": "odd", "by": "judge m"}
    report["findings"] += [quoted, quoted, {"message": "x"}, 7]
    raw = {"messages": [each.model_dump(mode="json") for each in talk], "report": report}
    said = present.shown_findings(raw, [])
    assert [(each["label"], each["place"]) for each in said] == [
        ("test_files", "patch"),
        ("history", "message"),
        ("startup_files", "message"),
        ("odd", "message"),
    ]
    [shown] = present.with_passages(present.messages(raw), said)
    marks = shown["calls"][0]["command"]["marks"]
    assert len([mark for mark in marks if mark[2] == "finding"]) == 3


@pytest.mark.parametrize("findings", [None, 7, "x", {"a": 1}, [[]], [None]])
def test_odd_findings_of_a_report_are_none(findings: Any):
    assert present.shown_findings({"report": {"findings": findings}}, []) == []


def test_the_same_finding_twice_is_one_and_those_of_one_trajectory_are_few(tmp_path: Path):
    path = tmp_path / "f.jsonl"
    line = {"trajectory_id": "t", "label": "l", "by": "j"}
    lines = [{**line, "message": n // 2} for n in range(1000)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    found = FindingFiles([path]).of("t")
    assert [each.message for each in found] == list(range(200))


def test_a_file_that_is_slow_to_read_is_not_read_for_every_request(tmp_path: Path, monkeypatch):
    """Nor is one that cannot be read any more: a judge may write to it all the time."""
    path, now = tmp_path / "f.jsonl", [100.0]
    path.write_text('{"trajectory_id": "t", "label": "one", "by": "j"}\n')
    reads: list[Path] = []

    def slowly(path: Path, **options: Any):
        reads.append(path)
        now[0] += 2.0
        return read_findings(path, **options)

    monkeypatch.setattr(in_files, "read_findings", slowly)
    # Not the module's function: event loops of other threads live by it.
    monkeypatch.setattr(in_files, "time", SimpleNamespace(monotonic=lambda: now[0]))
    files = FindingFiles([path])
    for content in ("a\n", "b\n" * 9):
        path.write_text(content)
        for _ in range(5):
            files.of("t")
        assert len(reads) == 1
    os.truncate(path, 1 << 30)
    now[0] += 25.0
    for _ in range(5):
        assert [each.label for each in files.of("t")] == ["one"]
    assert len(reads) == 2
