"""Rows in OpenAI's form are what its readers expect, to the letter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conversations import CONVERSATION, TOOL, call, message, record, written

from hermes_plugins.datasets.openai import OpenAiSink


def test_openai_rows_have_messages_and_tools_and_nothing_else(tmp_path: Path) -> None:
    [row] = written(OpenAiSink, tmp_path / "o.jsonl", record())
    assert list(row) == ["messages", "tools"]
    assert row["tools"] == [TOOL]
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"command": "ls é"}'
    assert all("reasoning" not in message for message in row["messages"])


def test_an_openai_row_ends_with_the_assistant(tmp_path: Path) -> None:
    [row] = written(OpenAiSink, tmp_path / "o.jsonl", record(CONVERSATION[:5]))
    assert row["messages"][-1]["role"] == "assistant"
    assert len(row["messages"]) == 3


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([message("user", "x")], "no assistant message"),
        ([message("assistant", "x")], "no user message"),
        (
            [message("user", "x"), message("assistant", tool_calls=[call(1, "terminal", "{")])],
            "malformed tool call",
        ),
        (
            [
                message("user", "x"),
                message("assistant", tool_calls=[call(1, "terminal", "{}")]),
                message("assistant", "y"),
            ],
            "a call without an answer",
        ),
        (
            [
                message("user", "x"),
                message("tool", "y", tool_call_id="c9"),
                message("assistant", "z"),
            ],
            "an answer without a call",
        ),
    ],
)
def test_what_openai_would_refuse_is_no_row_and_is_counted(messages, reason, tmp_path) -> None:
    with OpenAiSink(tmp_path / "o.jsonl") as sink:
        assert sink.write([record(messages), record(sample=1)]) == 1
        assert sink.refusal(record(messages)) == reason


@pytest.mark.parametrize(
    "text",
    [r'{"text": "cut \ud83d"}', '{"a":' * 100_000 + "1" + "}" * 100_000, "[" * 100_000],
    ids=["half of an emoji", "nested without end", "brackets"],
)
def test_what_a_model_or_a_tool_writes_stops_no_sink(text, tmp_path: Path) -> None:
    asked = message("assistant", tool_calls=[call(1, "terminal", text)])
    answered = message("tool", text, tool_call_id="c1")
    with OpenAiSink(tmp_path / "o.jsonl") as sink:
        sink.write([record((CONVERSATION[1], asked, answered, CONVERSATION[-1])), record(sample=1)])
        assert len(sink.held) >= 1
    for line in (tmp_path / "o.jsonl").read_text().splitlines():
        json.loads(line)
