"""A task of several steps in one attempt: one conversation, one slot, a verdict of them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from records import make_job
from token_stub import END, TokenStub

from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.merge import merge_with_breaks
from hermes_queue.errors import (
    EnvBug,
    EnvInfraError,
    SandboxError,
    SandboxRejected,
    SlotKilled,
    TrajectoryFailure,
)
from hermes_queue.models import AttemptRecord, Failure
from hermes_queue.sandbox.base import (
    Capabilities,
    ExecutionRequest,
    ExecutionResult,
    Slot,
    SlotSpec,
)
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import make_call
from workers.attempt import Attempt, Services
from workers.draft import Draft
from workers.rollout import rollout

ROW = {"question": "1+1", "answer": "#### 2"}


class Slots:
    """A backend whose slots run nothing, and are killed by `end it`."""

    def __init__(self, *, commits: bool = True) -> None:
        self.capabilities = Capabilities(isolation=True, commits=commits)
        self.leased: list[str] = []
        self.released: list[str] = []
        self.commands: list[str] = []

    async def prepare(self, spec: SlotSpec) -> None:
        pass

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        self.leased.append(f"s{len(self.leased)}")
        return Slot(self.leased[-1], trajectory_id, "box", "/workspace", spec)

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        self.commands += [each.command for each in requests]
        return [
            SlotKilled("gone") if each.command == "end it" else ExecutionResult(0, b"", b"", 0.0)
            for each in requests
        ]

    async def release(self, slot: Slot) -> None:
        self.released.append(slot.slot_id)


async def rolled_out(
    env: str = "ENV",
    agent: Any = "oracle",
    *,
    earlier: tuple[AttemptRecord, ...] = (),
    commits: bool = True,
    **job: Any,
) -> tuple[Draft, Slots, TrajectoryFailure | None]:
    kind = {"kind": agent} if isinstance(agent, str) else agent
    draft = Draft(
        job=make_job(item=ROW, env=f"stepped_env:{env}", agent=kind, **job),
        attempt=len(earlier) + 1,
        epoch=1,
        earlier=earlier,
    )
    backend = Slots(commits=commits)

    async def measured() -> None:
        assert draft.verdict is not None

    failure = None
    try:
        model = ModelSettings(trusted_urls=kind.get("base_url") or "", max_retries=0)
        services = Services(cast(Any, backend), model)
        await rollout(Attempt(draft=draft, row=ROW, services=services, on_measured=measured))
    except TrajectoryFailure as error:
        failure = error
    return draft, backend, failure


def scores(draft: Draft) -> list[float]:
    assert draft.verdict is not None
    return list(draft.verdict.report["scores"])


async def test_each_step_is_solved_and_measured_in_one_slot() -> None:
    draft, backend, failure = await rolled_out()
    assert (failure, scores(draft), backend.leased) == (None, [1, 2, 3], ["s0"])
    assert backend.commands == ["solve 0", "solve 1", "solve 2"]
    users = [each.content for each in draft.agent.messages if each.role == "user"]
    assert users == ["instruction 0", "instruction 1", "instruction 2"]
    steps = [event["number"] for event in draft.agent.events if event["event"] == "step"]
    assert (steps, draft.agent.stop_reason) == ([2, 3], "submitted")


async def test_a_failure_in_a_later_step_is_no_score() -> None:
    draft, backend, failure = await rolled_out("FAILS_IN_THE_SECOND")
    assert isinstance(failure, EnvInfraError)
    assert (failure.stage, draft.verdict, backend.released) == ("verify", None, ["s0"])


@pytest.mark.parametrize(
    ("env", "limits", "expected"),
    [
        ("GATED", {}, [1]),
        ("SPOILED", {}, [1, 0]),
        ("ENV", {"max_turns": 3}, [1, 2]),
        ("HURRIED", {}, [1, 2]),
    ],
)
async def test_steps_end_where_no_further_one_can_begin(
    env: str, limits: dict[str, int], expected: list[int]
) -> None:
    draft, backend, _ = await rolled_out(env, limits=limits)
    assert (scores(draft), draft.verdict and draft.verdict.report["of"]) == (expected, 3)
    assert backend.released == ["s0"]


async def test_a_slot_that_the_agent_kills_in_a_later_step_scores_it_0() -> None:
    turns = [[make_call("a", "submit")], [make_call("b", "terminal", command="end it")]]
    messages = [{"role": "assistant", "tool_calls": calls} for calls in turns]
    failure = Failure(cause="sandbox", stage="agent", type="SlotKilled", message="gone")
    draft, _, _ = await rolled_out(
        agent={"kind": "replay", "params": {"messages": messages}},
        earlier=(AttemptRecord(attempt=1, epoch=1, failure=failure),),
    )
    assert (scores(draft), draft.agent.stop_reason) == ([1, 0], "slot_killed")


@pytest.mark.parametrize("stage", ["setup", "verify"])
async def test_a_slot_that_the_work_of_earlier_steps_kills_again_scores_the_step_0(
    stage: str,
) -> None:
    env = f"ENDS_IN_{stage.upper()}"
    _, _, first = await rolled_out(env)
    assert (type(first), getattr(first, "stage", "")) == (SlotKilled, stage)
    failure = Failure(cause="sandbox", stage=stage, type="SlotKilled", message="gone")
    earlier = (AttemptRecord(attempt=1, epoch=1, failure=failure),)
    draft, _, failed = await rolled_out(env, earlier=earlier)
    assert failed is None
    assert (scores(draft), draft.agent.stop_reason) == ([1, 0], "slot_killed")


async def test_a_program_is_refused_before_a_slot_is_taken() -> None:
    program = {"name": "p", "run": "true {task} {url} {key}"}
    _, backend, failure = await rolled_out(
        agent={"kind": "command", "model": "m", "params": {"program": program}}
    )
    assert isinstance(failure, EnvBug)
    assert "has 3 steps, and the program p takes one instruction" in str(failure)
    assert backend.leased == []


@pytest.mark.xdist_group("openai")
async def test_the_next_instruction_extends_the_tokens_of_the_step_before() -> None:
    submit = '<tool_call>{"name":"submit","arguments":{}}</tool_call>'
    async with TokenStub([submit, "Done.", submit]) as stub:
        params = {"mode": "tokens", "server": "vllm", "parser": "hermes"}
        agent = {"kind": "openai", "model": "m", "base_url": stub.url, "params": params}
        draft, _, failure = await rolled_out(agent=agent)
        await close_clients()
    assert (failure, scores(draft)) == (None, [1, 2, 3])
    [sequence], _ = merge_with_breaks(draft.agent.turns)
    text = "".join("|" if i == END else chr(i) for i in sequence.ids)
    assert text.index("instruction 0") < text.index(submit) < text.index("instruction 1")
    assert text.index("Done.") < text.index("instruction 2")
    assert sum(sequence.loss_mask) == sum(len(t.completion_ids or ()) for t in draft.agent.turns)


async def test_steps_are_refused_before_a_slot_where_no_slot_can_be_kept() -> None:
    _, backend, failure = await rolled_out(commits=False)
    assert isinstance(failure, SandboxRejected)
    assert "has 3 steps" in str(failure)
    assert backend.leased == []
