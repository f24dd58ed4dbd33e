"""Pairs of the `preferences` format: of measured members of one group, the same whenever made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from records import make_job, make_record

from hermes_plugins.datasets.preferences import PairOptions, PreferencesSink
from hermes_queue.cli.sinks.export import export
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import FunctionCall, Message, ScoredTrajectory, ToolCall, TrajectoryGroup
from hermes_queue.sinks.selection import Filters, Selection

TOOL = {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}


def conversation(answer: str, *, asked: str = "Repair it.", call_id: str = "c1"):
    call = ToolCall(
        id=call_id, function=FunctionCall(name="terminal", arguments='{"command": "ls"}')
    )
    return (
        Message(role="system", content="You repair bugs."),
        Message(role="user", content=asked),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="a.py", tool_call_id=call_id),
        Message(role="assistant", content=answer),
    )


def member(sample: int, score: float | None, instance: str = "i", **more) -> ScoredTrajectory:
    made = make_record(make_job(instance=instance, sample=sample, size=8), score)
    fields = {"messages": conversation(f"answer {sample}"), "tools": (TOOL,), **more}
    return made.model_copy(update=fields)


def scored(*scores: float | None) -> list[ScoredTrajectory]:
    return [member(sample, score) for sample, score in enumerate(scores)]


def group(members: list[ScoredTrajectory]) -> TrajectoryGroup:
    first = members[0]
    return TrajectoryGroup.model_construct(
        group_id=first.group_id,
        instance_id=first.instance_id,
        members=tuple(members),
        complete=True,
    )


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def samples(path: Path) -> list[tuple[int, int]]:
    return [
        (int(row["chosen_id"].rpartition(".")[2]), int(row["rejected_id"].rpartition(".")[2]))
        for row in rows(path)
    ]


def paired(path: Path, members: list[ScoredTrajectory], **options) -> list[tuple[int, int]]:
    with PreferencesSink(path, PairOptions(**options)) as sink:
        sink.write(members)
    return samples(path)


def test_a_row_is_a_conversational_preference_with_its_tools(tmp_path: Path) -> None:
    paired(tmp_path / "o.jsonl", scored(0.0, 1.0))
    [row] = rows(tmp_path / "o.jsonl")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert [message["role"] for message in row["chosen"]] == ["assistant", "tool", "assistant"]
    [call] = row["chosen"][0]["tool_calls"]
    assert call["function"] == {"name": "terminal", "arguments": {"command": "ls"}}
    assert row["chosen"][0]["content"] == ""
    assert (row["chosen"][-1]["content"], row["rejected"][-1]["content"]) == (
        "answer 1",
        "answer 0",
    )
    assert json.loads(row["tools"]) == [TOOL]
    assert (row["score_chosen"], row["score_rejected"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("scores", "options", "expected"),
    [
        ((0.5, 1.0, 0.0, 0.7), {}, [(1, 2)]),
        ((0.5, 1.0, 0.0, 0.7), {"pairs_per_group": 9}, [(1, 2), (3, 0)]),
        ((0.5, 1.0, 0.0), {"pairs_per_group": 9, "reuse_members": True}, [(1, 2), (1, 0), (0, 2)]),
        ((0.5, 1.0, 0.0), {"pairs_per_group": 9, "min_gap": 0.6, "reuse_members": True}, [(1, 2)]),
        ((1.0, 1.0, 0.0, 0.0), {"pairs_per_group": 9}, [(0, 2), (1, 3)]),
        ((0.3, 0.2), {"min_gap": 0.1}, [(0, 1)]),
        ((0.3, 0.25), {"min_gap": 0.1}, []),
        ((1.0, 1.0), {}, []),
        ((1.0, None), {}, []),
    ],
)
def test_the_options_say_which_members_make_pairs(scores, options, expected, tmp_path) -> None:
    assert paired(tmp_path / "o.jsonl", scored(*scores), **options) == expected


def test_the_order_in_which_members_come_changes_nothing(tmp_path: Path) -> None:
    members = scored(0.5, 1.0, 0.0, 0.5, 1.0)
    forth = paired(tmp_path / "a.jsonl", members, pairs_per_group=2)
    assert forth == paired(tmp_path / "b.jsonl", members[::-1], pairs_per_group=2) != []


def test_an_evaluation_is_in_no_pair_even_where_its_rows_are_allowed(tmp_path: Path) -> None:
    members = [member(0, 1.0, evaluation=True), member(1, 0.0), member(2, 0.5)]
    with PreferencesSink(tmp_path / "o.jsonl") as sink:
        filters = Filters(allow_evaluation=True)
        selection = Selection(filters, sink.held, refusal=sink.refusal, left_over=sink.left_over)
        sink.write(selection.choose(group(members)))
    assert samples(tmp_path / "o.jsonl") == [(2, 1)]
    assert selection.refused == {"of an evaluation": 1}


def test_what_got_around_the_grading_is_never_the_better_one(tmp_path: Path) -> None:
    cheat = member(0, 1.0, report={"flags": ["reads the tests"]})
    assert paired(tmp_path / "o.jsonl", [cheat, member(1, 0.5), member(2, 0.0)]) == [(1, 2)]
    worst = member(0, 0.0, report={"flags": ["reads the tests"]})
    assert paired(tmp_path / "p.jsonl", [worst, member(1, 0.5)]) == [(1, 0)]


def test_members_of_another_prompt_or_of_the_same_completion_are_no_pair(tmp_path: Path) -> None:
    asked = member(1, 0.0, messages=conversation("no", asked="Repair something else."))
    assert paired(tmp_path / "a.jsonl", [member(0, 1.0), asked]) == []
    same = [member(n, float(n), messages=conversation("same", call_id=f"c{n}")) for n in range(2)]
    assert paired(tmp_path / "b.jsonl", same) == []
    assert paired(tmp_path / "c.jsonl", [member(0, 1.0), member(1, 0.0, tools=())]) == []


def test_pairs_are_made_within_a_group_only(tmp_path: Path) -> None:
    assert paired(tmp_path / "o.jsonl", [member(0, 1.0), member(0, 0.0, instance="j")]) == []


def test_a_group_delivered_again_to_a_sink_started_again_makes_no_more_pairs(tmp_path) -> None:
    members = scored(0.5, 1.0, 0.0, 0.7)
    path = tmp_path / "o.jsonl"
    for refused in ({"no pair": 2}, {"group has its pairs": 2}):
        with PreferencesSink(path, PairOptions()) as sink:
            selection = Selection(
                Filters(), sink.held, refusal=sink.refusal, left_over=sink.left_over
            )
            sink.write(selection.choose(group(members)))
            assert selection.refused == refused
            assert sink.write(members) == 0
            assert len(sink.held) == 2
    assert samples(path) == [(1, 2)]


def test_a_pair_that_was_never_acknowledged_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    paired(path, scored(1.0, 0.0))
    torn = path.read_bytes()
    (tmp_path / ".o.jsonl.index").unlink()
    path.unlink()
    paired(path, [])
    path.write_bytes(torn[:-9])
    assert paired(path, scored(1.0, 0.0)) == [(0, 1)]


def test_a_bound_of_the_instance_is_refused_because_it_would_take_the_first(tmp_path) -> None:
    words = ["--format", "preferences", "--out", str(tmp_path / "o.jsonl"), "--from", "none.jsonl"]
    with pytest.raises(ConfigurationError, match="--pairs-per-group"):
        export.main([*words, "--max-per-instance", "2"], standalone_mode=False)
