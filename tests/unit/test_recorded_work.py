"""Recorded work that is graded again: what envs take from a record, what a worker makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from records import make_group, make_job, make_record
from sums_env import ENV as SUMS

from envs.base import NotRecorded
from envs.gsm8k import ENV as GSM8K
from envs.swe.recorded import recorded_patch
from envs.swe_smith import ENV as SWE
from hermes_queue.agent.kinds.recorded import recorded_params, regraded_of
from hermes_queue.bodies import codec
from hermes_queue.errors import EnvBug, ModelConfigError
from hermes_queue.models import (
    AgentSpec,
    Branch,
    Message,
    Node,
    ProgramRun,
    Regraded,
    ScoredTrajectory,
)
from hermes_queue.sinks.selection import Filters, Selection
from hermes_queue.tools.base import make_call
from workers.draft import Draft
from workers.record import final_record, record_of
from workers.steps.progress import StepProgress
from workers.steps.put_back import check_regradable

OLD = Regraded(run_id="run", trajectory_id="run.1.0", score=1.0, item_sha256="a")
SPEC = AgentSpec(
    kind="recorded", params={"outcome": {"answer": "7"}, "record": OLD.model_dump(mode="json")}
)
PATCH = "diff --git a/a.py b/a.py\n"


def said(*texts: str, **more: Any) -> ScoredTrajectory:
    messages = [Message(role="assistant", content=text) for text in texts]
    return make_record(make_job()).model_copy(update={"messages": tuple(messages), **more})


def regraded(score: float | None = 0.0, **more: Any) -> ScoredTrajectory:
    record = make_record(make_job("new"), score)
    return record.model_copy(update={"evaluation": True, "regraded": OLD, **more})


def test_the_answer_is_the_last_message_with_a_text() -> None:
    assert GSM8K.outcome(said("\\boxed{6}", "\\boxed{7}", "")) == {"answer": "\\boxed{7}"}


def test_a_reply_that_a_program_wrote_itself_is_no_answer() -> None:
    sampled, own = (Message(role="assistant", content=f"\\boxed{{{n}}}") for n in (6, 7))
    program = {
        "schema_version": 2,
        "program": ProgramRun(name="p"),
        "nodes": (Node(message=sampled, turn=0), Node(parent=0, message=own)),
        "branches": (Branch(label="main", root=0, leaf=0),),
    }
    record = make_record(make_job()).model_copy(update={"messages": (sampled, own), **program})
    assert GSM8K.outcome(record) == {"answer": "\\boxed{6}"}


def test_a_program_that_may_have_answered_in_a_call_is_not_regraded() -> None:
    call = Message(role="assistant", tool_calls=(make_call("c", "finish", message="7"),))
    record = make_record(make_job()).model_copy(
        update={
            "schema_version": 2,
            "messages": (call,),
            "program": ProgramRun(name="p"),
            "nodes": (Node(message=call, turn=0),),
        }
    )
    with pytest.raises(NotRecorded, match="tool call"):
        GSM8K.outcome(record)


def test_a_whole_patch_is_taken_as_it_is() -> None:
    patch = PATCH + "+ü\n"
    assert recorded_patch({"patch": patch, "patch_bytes": len(patch.encode())}) == patch
    assert recorded_patch({"patch": "", "patch_bytes": 0}) == ""


@pytest.mark.parametrize(
    "report",
    [
        {"reason": "too_large"},
        {"patch": None, "patch_bytes": 0},
        {"patch": PATCH, "patch_bytes": "25"},
        {"patch": PATCH, "patch_bytes": len(PATCH) + 1},
        {"patch": PATCH + "\ufffd", "patch_bytes": len(PATCH) + 3},
        {"patch": "\udc80", "patch_bytes": 3},
    ],
)
def test_a_patch_that_is_not_all_there_is_refused(report: dict[str, Any]) -> None:
    with pytest.raises(NotRecorded):
        recorded_patch(report)


async def test_nobody_takes_a_turn_in_a_regrade() -> None:
    from hermes_queue.agent.registry import AgentScript, make_chat
    from hermes_queue.settings import ModelSettings

    async def oracle() -> Any:
        raise AssertionError

    chat = make_chat(SPEC, AgentScript(oracle=oracle), ModelSettings())
    with pytest.raises(ModelConfigError, match="takes no turns"):
        await chat.complete([], [], {}, 0.0)


def test_parameters_that_are_not_those_of_a_regrade_are_refused() -> None:
    broken = SPEC.model_copy(update={"params": {"outcome": 7}})
    with pytest.raises(ModelConfigError):
        recorded_params(broken)
    assert regraded_of(broken) is None
    assert recorded_params(AgentSpec(kind="oracle")) is None


def test_a_worker_refuses_a_regrade_of_an_env_without_one() -> None:
    draft = Draft(job=make_job(agent=SPEC), attempt=1, epoch=1)
    check_regradable(StepProgress(draft, GSM8K, ["item"]))
    with pytest.raises(EnvBug, match="cannot be regraded"):
        check_regradable(StepProgress(draft, SUMS, ["item"]))
    with pytest.raises(EnvBug, match="2 steps"):
        check_regradable(StepProgress(draft, GSM8K, ["item", "item"]))


@pytest.mark.parametrize("env", [GSM8K, SWE])
async def test_an_outcome_of_another_form_is_no_score(env: Any) -> None:
    with pytest.raises(EnvBug):
        await env.put_back(None, None, {"answer": 7, "patch": ["diff"]})


def test_the_record_names_the_old_one_and_nothing_may_be_trained_on_it() -> None:
    draft = Draft(job=make_job(agent=SPEC), attempt=1, epoch=1)
    record = record_of(draft, owner="w", host="h", failure=EnvBug("x"))
    assert (record.regraded, record.evaluation) == (OLD, True)
    selection = Selection(Filters(failed=True), {})
    assert selection.choose(make_group(record)) == []


def test_a_record_that_is_too_large_still_names_the_old_one() -> None:
    draft = Draft(job=make_job(agent=SPEC), attempt=1, epoch=1)
    small, _ = final_record(draft, EnvBug("x"), owner="w", host="h", cap_bytes=1)
    assert (small.score, small.regraded, small.evaluation) == (None, OLD, True)


def test_a_regrade_without_the_mark_of_an_evaluation_is_no_record() -> None:
    data = regraded().model_dump()
    with pytest.raises(ValidationError, match="marked as an evaluation"):
        ScoredTrajectory.model_validate({**data, "evaluation": False})


def test_only_the_record_of_a_regrade_has_the_field() -> None:
    record = regraded()
    assert codec.decode_record(codec.encode_record(record)) == record
    assert ScoredTrajectory.model_validate_json(record.to_json()) == record
    assert "regraded" not in json.loads(make_record(make_job()).to_json())
