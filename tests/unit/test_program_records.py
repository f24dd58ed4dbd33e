"""Records of programs: what they hold, what older readers see, what a trainer is given."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from records import make_job, make_record
from reply_trees import BASH, SYSTEM, USER, Program, result, say

from envs.base import Verdict
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.bodies import codec
from hermes_queue.errors import SchemaTooNew
from hermes_queue.models import (
    FunctionCall,
    Message,
    ProgramRun,
    ScoredTrajectory,
    TokenSequence,
    ToolCall,
    TrajectoryGroup,
)
from hermes_queue.sinks.atropos.wire import convert
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from hermes_queue.sinks.selection import Filters, Selection, of_branches
from hermes_queue.telemetry.scrubbing import Scrubber
from hermes_queue.trainers.rows import RowRefused
from hermes_queue.wire.branches import ALL, TRAINED
from workers.draft import Draft
from workers.program.run import with_answer
from workers.record import encoded, record_of

TITLE = Message(role="user", content="A title, please.")
OF_VERSION_1 = {
    *("schema_version", "run_id", "group_id", "trajectory_id", "sample_index", "group_size"),
    *("env", "instance_id", "agent", "policy_version", "policy_oldest", "policy_newest"),
    *("policy_begun", "requeued_from", "attempt", "epoch", "status", "stop_reason", "score"),
    *("rewards", "failure", "attempts", "messages", "tools", "events", "turns", "sequences"),
    *("tool_calls", "stage_seconds", "usage", "cost_usd", "report", "provenance", "created"),
}


def record_of_program(mode: str = "tokens", **run: Any) -> ScoredTrajectory:
    """A main conversation with a sibling and a reply that never arrived, a helper and a title."""
    program = Program()
    first, sibling = say(None, "ls"), say(None, "pwd")
    program.ask(say("A title"), TITLE, tools=())
    program.ask(first, SYSTEM, USER)
    program.ask(sibling, SYSTEM, USER)
    program.ask(say("Lost."), SYSTEM, USER, first, result("a"), deliver=False)
    program.ask(say("One."), SYSTEM, USER, first, result("a"))
    program.ask(say("Two."), SYSTEM, USER, first, result("a"))
    asked = Message(role="user", content="Look for it.")
    program.ask(say("Found."), asked, hints={"X-Parent-Session-Id": "p"})
    edited = say("Changed.", "ls")
    program.ask(say("Done."), SYSTEM, USER, first, result("a"), edited, result("b"))
    job = make_job(agent={"kind": "command", "params": {"mode": mode}})
    draft = Draft(job, attempt=1, epoch=1)
    draft.agent = program.result
    draft.agent.messages = program.tree.main_path()
    draft.agent.program = ProgramRun(name="mini", version="2", exit_code=0, **run)
    draft.verdict = Verdict(score=1.0)
    return record_of(draft, owner="w", host="h")


def test_a_record_of_a_program_keeps_every_invariant_and_survives_its_encoding() -> None:
    record = record_of_program()
    assert token_violations(record) == []
    assert record.schema_version == 2
    assert codec.decode_record(codec.encode_record(record)) == record
    assert ScoredTrajectory.model_validate_json(record.to_json()) == record


def test_each_path_of_turns_is_a_sequence_and_shared_turns_are_trainable_in_the_longest() -> None:
    record = record_of_program()
    assert [(s.turns, s.branch) for s in record.sequences or ()] == [
        ((0,), "side"),
        ((1, 5), "main"),
        ((1, 4), "main"),
        ((2,), "main"),
        ((6,), "sub_agent"),
        ((7,), "main"),
    ]
    masks = [list(s.loss_mask) for s in record.sequences or ()]
    assert masks[1] == [0, 0, 0, 1, 0, 1]
    assert masks[2] == [0, 0, 0, 0, 0, 1]
    assert [turn.call and turn.call.status for turn in record.turns].index("undelivered") == 3


def changed(record: ScoredTrajectory, index: int, **update: Any) -> ScoredTrajectory:
    turns = list(record.turns)
    turns[index] = turns[index].model_copy(update=update)
    return record.model_copy(update={"turns": tuple(turns)})


def with_sequence(record: ScoredTrajectory, index: int, **update: Any) -> ScoredTrajectory:
    sequences = list(record.sequences or ())
    sequences[index] = sequences[index].model_copy(update=update)
    return record.model_copy(update={"sequences": tuple(sequences)})


FORGERIES = {
    "no branch 9": lambda r: changed(r, 2, branch=9),
    "cannot continue turn 7": lambda r: changed(r, 5, parent=7),
    "which was not delivered": lambda r: changed(r, 5, parent=3),
    "not below the turn": lambda r: changed(r, 7, parent=None),
    "are no chain": lambda r: changed(r, 5, branch=0),
    "the nodes have the replies": lambda r: r.model_copy(update={"nodes": r.nodes[:-1]}),
    "cannot be above it": lambda r: r.model_copy(
        update={"nodes": (r.nodes[0].model_copy(update={"parent": 5}), *r.nodes[1:])}
    ),
    "it is no reply": lambda r: r.model_copy(
        update={"nodes": (r.nodes[0].model_copy(update={"turn": 7}), *r.nodes[1:])}
    ),
    "sequences, but the turns form": lambda r: r.model_copy(update={"sequences": r.sequences[1:]}),
    "by their prompts": lambda r: with_sequence(r, 1, turns=(5,)),
    "its branch is not": lambda r: with_sequence(r, 0, branch="main"),
    "not exactly the sampled": lambda r: with_sequence(r, 2, loss_mask=(0, 0, 0, 1, 0, 1)),
    "logprobs are not": lambda r: with_sequence(r, 1, logprobs=(0.0, 0.0, 0.0, -0.5, 0.0, -0.25)),
    "version 1": lambda r: r.model_copy(update={"schema_version": 1}),
    "by the events": lambda r: changed(r, 5, prompt_ids=(9, 9)),
}


@pytest.mark.parametrize("flaw", FORGERIES)
def test_a_record_that_contradicts_itself_is_found(flaw: str) -> None:
    forged = FORGERIES[flaw](record_of_program())
    assert any(flaw in violation for violation in token_violations(forged))


# --- versions -----------------------------------------------------------------------------


def test_other_records_hold_nothing_that_an_older_reader_does_not_know() -> None:
    data = json.loads(make_record(make_job()).to_json())
    assert data["schema_version"] == 1
    assert set(data) == OF_VERSION_1
    assert {"parent", "branch", "call"}.isdisjoint(data["turns"][0])
    assert set(data["sequences"][0]) == {"ids", "loss_mask", "logprobs"}


def test_files_hold_records_of_both_versions(tmp_path: Path) -> None:
    with JsonlSink(tmp_path / "o.jsonl") as sink:
        sink.write([make_record(make_job(sample=1, size=2)), record_of_program()])
    lines = (tmp_path / "o.jsonl").read_text().splitlines()
    assert [json.loads(line)["schema_version"] for line in lines] == [1, 2]
    assert ScoredTrajectory.model_validate_json(lines[1]) == record_of_program().model_copy(
        update={"created": json.loads(lines[1])["created"]}
    )


def test_an_older_reader_is_told_to_upgrade() -> None:
    with pytest.raises(SchemaTooNew, match=r"schema_version 2, .* up to 1: upgrade hermes-queue"):
        codec.refuse_newer("record", record_of_program().schema_version, 1)


def test_a_record_of_version_1_has_no_conversations() -> None:
    data = record_of_program().model_dump()
    with pytest.raises(ValueError, match="has schema_version 2"):
        ScoredTrajectory.model_validate(data | {"schema_version": 1})


# --- secrets and sizes --------------------------------------------------------------------


def test_secrets_are_replaced_in_all_that_a_program_leaves() -> None:
    secret = "correct horse battery"
    record = record_of_program(stdout=f"it is {secret}", kept={"/a": secret})
    node = record.nodes[0].model_copy(update={"message": say(secret)})
    record = record.model_copy(update={"nodes": (node, *record.nodes[1:])})
    call = record.turns[1].call
    assert call is not None
    record = changed(record, 1, call=call.model_copy(update={"hints": {"x-session": secret}}))
    clean = Scrubber([secret]).record(record)
    assert secret not in clean.to_json()
    assert clean.events[-1]["fields"] == ["nodes", "program", "turns"]


def test_a_record_that_is_too_large_leaves_out_what_is_not_trained_on() -> None:
    whole = record_of_program(kept={"/log": "".join(map(chr, range(32, 20_000)))})
    least = len(codec.encode_record(whole.model_copy(update={"nodes": (), "program": None})))
    kept, body = encoded(whole, least + 400)
    assert kept.status == "completed"
    assert len(body) <= least + 400
    assert kept.nodes == ()
    assert kept.program is not None
    assert kept.program.kept == {}
    assert kept.events[-1]["event"] == "record_reduced"
    assert token_violations(kept) == []


# --- what a trainer is given --------------------------------------------------------------


def labels(record: ScoredTrajectory) -> list[str]:
    return [each.branch for each in record.sequences or ()]


def group_of(*members: ScoredTrajectory) -> TrajectoryGroup:
    first = members[0]
    facts = first.model_dump(include={"run_id", "group_id", "env", "instance_id"})
    made = {"members": members, "size": len(members), "complete": True, "mean": 1.0, "std": 0.0}
    return TrajectoryGroup.model_construct(**facts, **made, created=0.0, finished=0.0)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), ["main"] * 3 + ["sub_agent", "main"]),
        (Filters(branches=("main",)), ["main"] * 4),
        (Filters(branches=ALL), ["side"] + ["main"] * 3 + ["sub_agent", "main"]),
    ],
    ids=["default", "main", "all"],
)
def test_rows_have_the_sequences_of_the_branches_that_were_asked_for(filters, expected) -> None:
    [row] = Selection(filters, {}).choose(group_of(record_of_program()))
    assert labels(row) == expected


def test_a_row_without_sequences_of_these_branches_has_no_tokens() -> None:
    selection = Selection(Filters(branches=("compaction",), tokens=True), {})
    assert selection.choose(group_of(record_of_program())) == []
    assert selection.refused == {"no tokens": 1}


def test_records_without_branches_are_not_filtered() -> None:
    record = make_record(make_job())
    assert of_branches(record, TRAINED) is record


def test_a_trainer_gets_the_branches_that_were_asked_for() -> None:
    group = group_of(record_of_program())

    def sent(**options: Any) -> list[Any]:
        posts = convert(group, sequences="all", **options)
        bodies = [json.loads(gzip.decompress(post.body(1, {}))) for post in posts]
        return [body["overrides"][0]["hermes_queue"]["branch"] for body in bodies]

    assert sent() == ["main"] * 3 + ["sub_agent", "main"]
    assert sent(branches=("side",)) == ["side"]
    with pytest.raises(RowRefused, match="no tokens of compaction"):
        sent(branches=("compaction",))


def test_a_conversation_whose_tokens_are_all_trained_elsewhere_is_not_sent() -> None:
    record = record_of_program()
    empty = TokenSequence(
        ids=(1, 2), loss_mask=(0, 0), logprobs=(0.0, 0.0), turns=(0,), branch="main"
    )
    group = group_of(record.model_copy(update={"sequences": (empty, *(record.sequences or ()))}))
    assert len(convert(group, sequences="all")) == 5


def test_rows_of_parquet_name_program_and_branches_and_keep_their_columns() -> None:
    from hermes_queue.sinks.datasets import arrow_rows

    rows = arrow_rows.batch([make_record(make_job()), record_of_program(stdout="out")])
    assert arrow_rows.ROWS_VERSION == 1
    plain, of_program = map(json.loads, rows.column("provenance").to_pylist())
    assert {"program", "branches"}.isdisjoint(plain)
    assert of_program["program"]["name"] == "mini"
    assert "stdout" not in of_program["program"]
    assert of_program["branches"] == labels(record_of_program())


def test_tools_and_messages_are_those_of_the_main_conversation() -> None:
    record = record_of_program()
    assert [message.role for message in record.messages][-1] == "assistant"
    assert record.messages[-1].content == "Done."
    assert BASH["type"] == "function"


@pytest.mark.parametrize(
    ("arguments", "heard"),
    [
        ('{"message": "It is 24."}', "It is 24."),
        ('{"message": ""}', None),
        ('{"message": 24}', None),
        ('["It is 24."]', None),
        ("[" * 100_000, None),
    ],
)
def test_an_answer_that_is_given_in_a_call_is_heard_by_the_verifier(arguments, heard):
    last = Message(
        role="assistant",
        content="Now I end.",
        tool_calls=(ToolCall(id="1", function=FunctionCall(name="finish", arguments=arguments)),),
    )
    said = with_answer([USER, last], "finish.message")
    assert [message.content for message in said[2:]] == ([heard] if heard else [])
    assert with_answer([USER, last], "") == [USER, last]
