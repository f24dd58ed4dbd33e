"""Rows of the `tokens` format are the server's tokens, to the id, or are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from records import make_job, make_record

from hermes_plugins.datasets.openai import OpenAiSink
from hermes_plugins.datasets.tokens import TokenOptions, TokensSink
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import ScoredTrajectory, TokenSequence, TrajectoryGroup
from hermes_queue.sinks.selection import Filters, Selection


def sequence(ids, mask, branch="main") -> TokenSequence:
    return TokenSequence(ids=ids, loss_mask=mask, logprobs=(0.0,) * len(ids), branch=branch)


def record(*sequences: TokenSequence, sample: int = 0) -> ScoredTrajectory:
    made = make_record(make_job(sample=sample, size=8), 1.0)
    return made.model_copy(update={"sequences": sequences or None})


def written(path: Path, *records: ScoredTrajectory, **options: int) -> list[dict]:
    with TokensSink(path, TokenOptions(**options)) as sink:
        sink.write(records)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_labels_are_the_sampled_ids_at_their_own_places(tmp_path: Path) -> None:
    ids = (1, 151_644, 3, 2**31 - 1, 5)
    [row] = written(tmp_path / "o.jsonl", record(sequence(ids, (0, 0, 1, 1, 0))))
    assert row["input_ids"] == list(ids)
    assert row["labels"] == [-100, -100, 3, 2**31 - 1, -100]
    assert (row["instance_id"], row["score"], row["sequence"]) == ("i", 1.0, 0)


def test_a_trajectory_has_a_row_for_each_sequence_in_which_something_is_trained(tmp_path) -> None:
    both = record(sequence((1, 2), (0, 1)), sequence((1, 2), (0, 0)), sequence((1, 3), (0, 1)))
    rows = written(tmp_path / "o.jsonl", both)
    assert [(row["sequence"], row["input_ids"]) for row in rows] == [(0, [1, 2]), (2, [1, 3])]


def test_rows_are_counted_as_rows_and_held_as_one_trajectory_also_after_a_restart(tmp_path) -> None:
    both = record(sequence((1, 2), (0, 1)), sequence((1, 3), (0, 1)))
    with TokensSink(tmp_path / "o.jsonl") as sink:
        assert sink.write([both, both]) == 2
    with TokensSink(tmp_path / "o.jsonl") as sink:
        assert (sink.write([both]), len(sink.held)) == (0, 1)


@pytest.mark.parametrize(
    ("sequences", "reason"),
    [
        ((), "no tokens"),
        ((sequence((1, 2), (0, 0)),), "nothing trained"),
        ((sequence((1, 2), (0, 1)), sequence((1, 2, 3), (1,))), "tokens and mask of different"),
        ((sequence((1, -2), (0, 1)),), "a token id or a mask out of range"),
        ((sequence((1, 2), (0, 2)),), "a token id or a mask out of range"),
        ((sequence((1, 2), (0, 1)), sequence((1, 2, 3, 4), (0, 0, 0, 1))), "too long"),
    ],
)
def test_what_cannot_be_trained_on_has_no_row_and_says_why(sequences, reason, tmp_path) -> None:
    refused = record(*sequences, sample=1)
    with TokensSink(tmp_path / "o.jsonl", TokenOptions(max_length=3)) as sink:
        assert sink.write([refused, record(sequence((1, 2, 3), (0, 0, 1)))]) == 1
        assert sink.refusal(refused).startswith(reason)


def test_tokens_of_a_branch_that_was_not_chosen_are_in_no_row(tmp_path: Path) -> None:
    side = sequence((7, 8), (0, 1), branch="side")
    members = (record(side), record(sequence((1, 2), (0, 1)), side, sample=1))
    group = TrajectoryGroup.model_construct(instance_id="i", members=members, complete=True)
    path = tmp_path / "o.jsonl"
    with TokensSink(path) as sink:
        selection = Selection(Filters(), sink.held, refusal=sink.refusal)
        sink.write(selection.choose(group))
    assert [json.loads(row)["input_ids"] for row in path.read_text().splitlines()] == [[1, 2]]
    assert selection.refused == {"no tokens": 1}


def test_rows_of_one_format_are_not_added_to_a_file_of_another(tmp_path: Path) -> None:
    written(tmp_path / "o.jsonl", record(sequence((1, 2), (0, 1))))
    with pytest.raises(ConfigurationError, match="holds rows of tokens, these are of openai"):
        OpenAiSink(tmp_path / "o.jsonl")
    assert len(written(tmp_path / "o.jsonl")) == 1
