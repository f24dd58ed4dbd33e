"""Rows of the `swe_smith` format are those of SWE-smith's trajectories, in each of its styles."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from records import make_job, make_record

from hermes_plugins.datasets.swe_smith import StyleOptions, SweSmithSink
from hermes_queue.cli import cli
from hermes_queue.models import FunctionCall, Message, ScoredTrajectory, ToolCall

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "terminal",
            "description": "Run a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "The command."}},
                "required": ["command"],
            },
        },
    },
    {"type": "function", "function": {"name": "odd", "parameters": {"properties": {"x": True}}}},
)


def call(name: str, number: int = 1, **arguments: object) -> ToolCall:
    return ToolCall(
        id=f"c{number}", function=FunctionCall(name=name, arguments=json.dumps(arguments))
    )


def said(text: str | None, *calls: ToolCall) -> tuple[Message, ...]:
    """A reply and the results of its calls."""
    results = [Message(role="tool", content=f"result {c.id}", tool_call_id=c.id) for c in calls]
    return (Message(role="assistant", content=text, tool_calls=calls), *results)


def record(*replies: tuple[Message, ...], score: float | None = 1.0, **more) -> ScoredTrajectory:
    begun = (
        Message(role="system", content="You repair bugs."),
        Message(role="user", content="Repair it."),
    )
    messages = (*begun, *(message for reply in replies for message in reply))
    fields = {"messages": messages, "tools": TOOLS, "report": {"patch": "diff\n"}, **more}
    return make_record(make_job(instance="o__r.1.x"), score).model_copy(update=fields)


EDIT = record(
    said("Looking.", call("terminal", command="ls -l\necho 'a'")),
    said(None, call("patch", path="a b.py", old_string="x = 1", new_string="x = 2", all=True)),
    said("Done.", call("submit")),
)


def written(path: Path, *records: ScoredTrajectory, **options: object) -> list[dict]:
    with SweSmithSink(path, StyleOptions.model_validate(options)) as sink:
        sink.write(records)
    return [json.loads(line) for line in path.read_text().splitlines()]


def replies(row: dict) -> list[str]:
    return [each["content"] for each in row["messages"] if each["role"] == "assistant"]


@pytest.mark.parametrize("style", ["tool", "xml", "ticks"])
def test_a_row_has_the_keys_of_swe_smith_and_no_other(style, tmp_path: Path) -> None:
    [row] = written(tmp_path / "o.jsonl", EDIT, style=style)
    assert list(row) == ["messages", "instance_id", "resolved", "model", "traj_id", "patch"]
    assert (row["instance_id"], row["resolved"], row["model"]) == ("o__r.1.x", True, "oracle")
    assert (row["traj_id"], row["patch"]) == (EDIT.trajectory_id, "diff\n")
    assert row["messages"][-1]["role"] == "assistant"


def test_style_xml_states_calls_in_tags_and_results_as_the_user(tmp_path: Path) -> None:
    [row] = written(tmp_path / "o.jsonl", EDIT, style="xml")
    assert replies(row) == [
        "Looking.\n\n<function=terminal>\n<parameter=command>ls -l\necho 'a'</parameter>\n"
        "</function>",
        "<function=patch>\n<parameter=path>a b.py</parameter>\n"
        "<parameter=old_string>\nx = 1\n</parameter>\n<parameter=new_string>\nx = 2\n</parameter>\n"
        "<parameter=all>true</parameter>\n</function>",
        "Done.\n\n<function=submit>\n</function>",
    ]
    assert [each["role"] for each in row["messages"]] == ["system", *["user", "assistant"] * 3]
    assert all(list(each) == ["role", "content"] for each in row["messages"])


def test_swe_agents_expressions_find_in_style_xml_the_calls_that_were_made(tmp_path: Path) -> None:
    [row] = written(tmp_path / "o.jsonl", EDIT, style="xml")
    found = [re.findall(r"<function=([^>]+)>\n(.*?)</function>", r, re.S) for r in replies(row)]
    named = [[name for name, _ in calls] for calls in found]
    assert named == [["terminal"], ["patch"], ["submit"]]
    values = re.findall(r"<parameter=([^>]+)>(.*?)</parameter>", found[1][0][1], re.S)
    assert {name: value.strip("\n") for name, value in values} == {
        "path": "a b.py",
        "old_string": "x = 1",
        "new_string": "x = 2",
        "all": "true",
    }


def test_style_ticks_states_one_command_between_fences(tmp_path: Path) -> None:
    [row] = written(tmp_path / "o.jsonl", EDIT, style="ticks")
    assert replies(row) == [
        "Looking.\n\n```\nls -l\necho 'a'\n```",
        "```\npatch --path 'a b.py' --old_string 'x = 1' --new_string 'x = 2' --all true\n```",
        "Done.\n\n```\nsubmit\n```",
    ]


def test_style_tool_is_the_conversation_in_openais_form(tmp_path: Path) -> None:
    [row] = written(tmp_path / "o.jsonl", EDIT, style="tool")
    assert [each["role"] for each in row["messages"]][2:5] == ["assistant", "tool", "assistant"]
    [first] = row["messages"][2]["tool_calls"]
    assert json.loads(first["function"]["arguments"]) == {"command": "ls -l\necho 'a'"}


def test_the_published_form_has_the_messages_as_json_text(tmp_path: Path) -> None:
    [text] = written(tmp_path / "a.jsonl", EDIT, style="tool", messages_as_text=True)
    [lists] = written(tmp_path / "b.jsonl", EDIT, style="tool")
    assert json.loads(text["messages"]) == lists["messages"]


def test_the_system_prompt_lists_the_tools_and_the_form_of_a_call(tmp_path: Path) -> None:
    [row] = written(tmp_path / "o.jsonl", EDIT, style="xml")
    prompt = row["messages"][0]["content"]
    assert prompt.startswith("You repair bugs.\n\nYou can use these functions:\n\nterminal: Run")
    assert "- command (string, required): The command." in prompt
    assert prompt.endswith("</function>")


def test_a_system_prompt_of_ones_own_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("As in production.\n")
    options = {"style": "ticks", "system_prompt": tmp_path / "prompt.txt"}
    [row] = written(tmp_path / "o.jsonl", EDIT, **options)
    assert row["messages"][0] == {"role": "system", "content": "As in production."}
    assert [each["role"] for each in row["messages"]].count("system") == 1


def test_results_of_the_calls_of_one_reply_are_one_message(tmp_path: Path) -> None:
    two = record(said("Both.", call("a", 1), call("b", 2)), said("Done."))
    [row] = written(tmp_path / "o.jsonl", two, style="xml")
    assert row["messages"][3] == {"role": "user", "content": "result c1\nresult c2"}
    assert replies(row)[0].count("<function=") == 2


@pytest.mark.parametrize(
    ("style", "reply", "reason"),
    [
        ("xml", said("I write <function=x> here."), "a tag in the text of a reply"),
        ("xml", said("x", call("t", command="echo '</parameter>'")), "a tag in a call"),
        ("xml", said("x", call("t>\n<function=submit", a=1)), "a name of a call that the style"),
        ("xml", said("x", call("t", **{"a>b": 1})), "a name of a call that the style"),
        ("ticks", said("x", call("t", 1), call("t", 2)), "several calls in one reply"),
        ("ticks", said("x", call("terminal", command="cat <<E\n```\nE")), "a fence in a call"),
        ("ticks", said("```\nopen", call("submit")), "an open fence in the text of a reply"),
        ("ticks", said("I ran:\n```\nls\n```"), "a fence in a reply without a call"),
    ],
)
def test_what_a_parser_would_read_otherwise_has_no_row(style, reply, reason, tmp_path) -> None:
    with SweSmithSink(tmp_path / "o.jsonl", StyleOptions(style=style)) as sink:
        assert sink.refusal(record(reply, said("Done."))).startswith(reason)


@pytest.mark.parametrize(("score", "resolved"), [(1.0, True), (0.5, False), (0.0, False)])
def test_only_a_full_score_is_resolved(score, resolved, tmp_path: Path) -> None:
    [row] = written(tmp_path / "o.jsonl", record(said("x"), score=score))
    assert row["resolved"] is resolved


def test_what_was_not_measured_is_not_called_unresolved(tmp_path: Path) -> None:
    with SweSmithSink(tmp_path / "o.jsonl") as sink:
        assert sink.refusal(record(said("x"), score=None)) == "no score"


@pytest.mark.parametrize(
    ("report", "patch"),
    [
        ({"patch": "", "patch_bytes": 0}, ""),
        ({"patch": "é\n", "patch_bytes": 3}, "é\n"),
        ({"patch": "cut", "patch_bytes": 300_000}, None),
        ({"patch": "not Unicode \ufffd", "patch_bytes": 13}, None),
        ({}, None),
    ],
)
def test_a_patch_is_whole_or_null(report, patch, tmp_path: Path) -> None:
    [row] = written(tmp_path / "o.jsonl", record(said("x"), report=report))
    assert row["patch"] == patch


def test_an_odd_style_or_prompt_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(EDIT.to_json() + "\n")
    words = ["export", "--format", "swe_smith", "--from", str(tmp_path / "in.jsonl")]
    words += ["--out", str(tmp_path / "o.jsonl")]
    wrong = CliRunner().invoke(cli, [*words, "--style", "yaml"])
    assert wrong.exit_code == 2
    assert "is not one of 'tool', 'xml', 'ticks'" in wrong.output
    missing = CliRunner().invoke(cli, [*words, "--system-prompt", str(tmp_path / "none.txt")])
    assert missing.exit_code == 2
    assert not (tmp_path / "o.jsonl").exists()


def test_one_file_has_one_style(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    path.with_name("in.jsonl").write_text(EDIT.to_json() + "\n")
    words = ["export", "--format", "swe_smith", "--from", str(path.with_name("in.jsonl"))]
    words += ["--out", str(path)]
    assert CliRunner().invoke(cli, [*words, "--style", "ticks"]).exit_code == 0
    other = CliRunner().invoke(cli, words)
    assert other.exit_code != 0
    assert len(path.read_text().splitlines()) == 1
