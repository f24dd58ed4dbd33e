"""Rows of the text format are what their readers expect, to the letter."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from conversations import CONVERSATION, TOOL, call, message, record, written

from hermes_queue.cli.sinks.export import export
from hermes_queue.cli.sinks.options import flags_of
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import ScoredTrajectory, TrajectoryGroup
from hermes_queue.sinks.base import SinkOptions
from hermes_queue.sinks.datasets.sharegpt import ShareGptSink


def test_sharegpt_turns_are_those_of_the_batch_runner(tmp_path: Path) -> None:
    [row] = written(ShareGptSink, tmp_path / "o.jsonl", record())
    system, *turns = row["conversations"]
    assert system["from"] == "system"
    assert system["value"].startswith("You can call functions.")
    listed = json.loads(system["value"].split("<tools>\n")[1].split("\n</tools>")[0])
    function = TOOL["function"]
    assert listed == [{**function, "required": None}]
    assert list(listed[0]) == ["name", "description", "parameters", "required"]
    example = system["value"].rpartition("<tool_call>\n")[2].removesuffix("\n</tool_call>")
    assert json.loads(example) == {"name": "a_function", "arguments": {"a": 1}}
    assert turns == [
        {"from": "human", "value": "Repair it."},
        {
            "from": "gpt",
            "value": "<think>\nhmm\n</think>\nLooking.\n"
            '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls é"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "read_file", "arguments": {}}\n</tool_call>',
        },
        {
            "from": "tool",
            "value": '<tool_response>\n{"tool_call_id": "c1", "name": "terminal", "content": '
            '{"output": "a.py", "error": null}}\n</tool_response>\n'
            '<tool_response>\n{"tool_call_id": "c2", "name": "read_file", "content": '
            '"Error: no path"}\n</tool_response>',
        },
        {"from": "gpt", "value": "<think>so</think> Done."},
        {"from": "human", "value": "Sure?"},
        {"from": "gpt", "value": "<think>\n</think>\nYes."},
    ]


def test_sharegpt_rows_have_the_batch_runners_keys_in_its_order_and_then_ours(tmp_path) -> None:
    [row] = written(ShareGptSink, tmp_path / "o.jsonl", record(stop_reason="submitted"))
    assert list(row)[:9] == [
        *("prompt_index", "conversations", "metadata", "completed", "partial", "api_calls"),
        *("toolsets_used", "tool_stats", "tool_error_counts"),
    ]
    assert list(row["metadata"]) == ["batch_num", "timestamp", "model"]
    assert (row["completed"], row["partial"], row["api_calls"]) == (True, False, 3)
    assert row["tool_stats"]["terminal"] == {"count": 1, "success": 1, "failure": 0}
    assert row["tool_stats"]["read_file"] == {"count": 1, "success": 0, "failure": 1}
    assert row["tool_stats"]["patch"] == {"count": 0, "success": 0, "failure": 0}
    assert row["tool_error_counts"]["read_file"] == 1
    assert (row["reward"], row["scored"], row["instance_id"]) == (1.0, True, "i")


def test_samples_of_one_instance_share_the_prompt_index_also_after_a_restart(tmp_path) -> None:
    path = tmp_path / "o.jsonl"
    written(ShareGptSink, path, record(instance="a"), record(instance="b"))
    rows = written(
        ShareGptSink, path, record(instance="b", sample=1), record(instance="c"), record()
    )
    assert [r["prompt_index"] for r in rows] == [0, 1, 1, 2, 3]


def test_lines_that_no_index_names_are_cut_off_and_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    [first] = written(ShareGptSink, path, record())
    with path.open("a") as stream:
        stream.write('{"messages": [{"role": "user", "content": "was never acknow')
    found = written(ShareGptSink, path, record(), record(sample=1))
    assert [found[0], len(found)] == [first, 2]


def test_a_file_that_somebody_else_shortened_or_made_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    written(ShareGptSink, path, record())
    path.write_text("short")
    with pytest.raises(ConfigurationError, match="another program changed it"):
        ShareGptSink(path)
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"messages": []}\n')
    with pytest.raises(ConfigurationError, match="no index"):
        ShareGptSink(foreign)
    assert foreign.read_text() == '{"messages": []}\n'


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    with (
        ShareGptSink(tmp_path / "o.jsonl"),
        pytest.raises(ConfigurationError, match="another process is writing"),
    ):
        ShareGptSink(tmp_path / "o.jsonl")


@pytest.mark.parametrize(
    "text",
    [r'{"text": "cut \ud83d"}', '{"a":' * 100_000 + "1" + "}" * 100_000, "[" * 100_000],
    ids=["half of an emoji", "nested without end", "brackets"],
)
def test_what_a_model_or_a_tool_writes_stops_no_sink(text, tmp_path: Path) -> None:
    def about(arguments: str, answer: str, sample: int) -> ScoredTrajectory:
        asked = message("assistant", tool_calls=[call(1, "terminal", arguments)])
        answered = message("tool", answer, tool_call_id="c1")
        return record((CONVERSATION[1], asked, answered, CONVERSATION[-1]), sample=sample)

    with ShareGptSink(tmp_path / "o.jsonl") as sink:
        sink.write([about(text, "done", 0), about("{}", text, 1)])
        assert len(sink.held) >= 1
    for line in (tmp_path / "o.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_tool_that_there_is_not_changes_no_schema_and_its_row_is_counted(tmp_path: Path) -> None:
    invented = message("assistant", tool_calls=[call(1, "invented_tool", "{}")])
    no_such = message("tool", "Error: no such tool", tool_call_id="c1")
    messages = (CONVERSATION[1], invented, no_such, CONVERSATION[-1])
    with ShareGptSink(tmp_path / "o.jsonl") as sink:
        assert sink.write([record(), record(messages, sample=1)]) == 1
        assert sink.refusal(record(messages, sample=1)) == "call of an unknown tool"


def test_what_has_no_row_leaves_its_place_to_another_of_its_instance(tmp_path: Path) -> None:
    from hermes_queue.sinks.selection import Filters, Selection

    invented = message("assistant", tool_calls=[call(1, "invented_tool", "{}")])
    members = (record((CONVERSATION[1], invented)), record(sample=1), record(sample=2))
    group = TrajectoryGroup.model_construct(instance_id="i", members=members, complete=True)
    with ShareGptSink(tmp_path / "o.jsonl") as sink:
        selection = Selection(Filters(max_per_instance=1), sink.held, refusal=sink.refusal)
        assert sink.write(selection.choose(group)) == 1
    assert selection.refused == {"call of an unknown tool": 1, "enough of this instance": 1}


def test_a_sink_that_lacks_a_method_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    (tmp_path / "halfway.py").write_text(
        """
from hermes_queue.sinks.base import Format

class Halfway:
    def write(self, trajectories): ...

FORMAT = Format(help="", open=lambda out, options, choice: Halfway())
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = [
        "--format",
        "halfway:FORMAT",
        "--out",
        "o",
        "--from",
        str(tmp_path / "not-there.jsonl"),
    ]
    expected = "sink 'halfway:FORMAT' opens a Halfway, which has no close, held"
    with pytest.raises(ConfigurationError, match=expected):
        export.main(words, standalone_mode=False)


def test_an_option_of_several_types_is_a_flag_that_takes_a_text():
    class Options(SinkOptions):
        cap: int | str | None = None

    [flag] = flags_of(Options)
    assert (flag.opts, flag.type) == (["--cap"], click.STRING)
