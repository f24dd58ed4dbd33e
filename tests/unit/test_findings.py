"""Findings of judges as JSON lines: what is read, and what is refused in which words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hermes_queue.bodies import findings
from hermes_queue.bodies.findings import TranscriptFinding, read_findings
from hermes_queue.bodies.signs import find_signs
from hermes_queue.errors import InputError
from hermes_queue.models import Message
from hermes_queue.tools.base import make_call

GOOD = {"trajectory_id": "run.1f.0", "message": 3, "quote": "q", "label": "history", "by": "me"}


def file(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "findings.jsonl"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts))
    return path


def test_findings_are_read_in_order_and_empty_lines_passed_over(tmp_path: Path) -> None:
    other = {"trajectory_id": "run.1f.1", "label": "other", "by": "me", "more": [1]}
    first, second = read_findings(file(tmp_path, GOOD, b"", b"  ", other))
    assert first == TranscriptFinding(**GOOD)
    assert (second.message, second.quote, second.note) == (None, "", "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "no JSON: Expecting property name"),
        (b"[1]", "no JSON object"),
        (b"\xff", "the line is not UTF-8"),
        (b"[" * 60_000, "nested too deep"),
        (b'{"x": "' + b"y" * 70_000 + b'"}', "the line has more than 65,536 bytes"),
        ({}, "trajectory_id: Field required"),
        (GOOD | {"message": -1}, "message: Input should be greater than or equal to 0, not -1"),
        (GOOD | {"message": "3"}, "message: Input should be a valid integer, not '3'"),
        (GOOD | {"message": True}, "message: Input should be a valid integer, not True"),
        (GOOD | {"quote": "x" * 4001}, "quote: String should have at most 4000 characters"),
        (GOOD | {"label": ""}, "label: String should have at least 1 character"),
        (GOOD | {"quote": "\ud800"}, "quote: Input should be a valid string"),
        (GOOD | {"by": 7}, "by: Input should be a valid string, not 7"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, line: Any, words: str) -> None:
    path = file(tmp_path, GOOD, line, GOOD)
    with pytest.raises(InputError) as caught:
        list(read_findings(path))
    assert str(caught.value).startswith(f"{path}:2: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 300


def test_a_reader_may_be_told_of_bad_lines_and_go_on(tmp_path: Path) -> None:
    told: list[str] = []
    path = file(tmp_path, b"x" * 200_000, GOOD, b"{}", GOOD)
    assert len(list(read_findings(path, on_error=told.append))) == 2
    assert [each.removeprefix(str(path))[:3] for each in told] == [":1:", ":3:"]


def test_a_file_of_too_many_lines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "FINDINGS_MOST", 2)
    with pytest.raises(InputError, match="more than 2 lines"):
        list(read_findings(file(tmp_path, GOOD, GOOD, GOOD)))


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(read_findings(tmp_path / "x"))


def test_signs_of_cheating_are_findings() -> None:
    call = make_call("c", "terminal", command="git reflog")
    [found] = find_signs({"patch": ""}, [Message(role="assistant", tool_calls=(call,))])
    assert TranscriptFinding(trajectory_id="t", **found).quote == "git reflog"


@pytest.mark.parametrize("size", [findings.FILE_BYTES_MAX + 1, 1 << 40])
def test_a_file_of_any_size_is_refused_before_it_is_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "f.jsonl"
    path.touch()
    os.truncate(path, size)
    with pytest.raises(InputError, match="has more than 64 MiB"):
        list(read_findings(path))


def test_what_is_no_file_is_refused_and_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "f.jsonl"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(InputError, match="is no regular file"):
            list(read_findings(path))
