"""One attempt from its slot to its verdict: what bounds its stages, what follows a lost slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from records import make_job

from hermes_queue.agent.chat import Reply
from hermes_queue.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    ModelConfigError,
    SandboxError,
    SlotKilled,
    SlotLost,
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
from workers import rollout as rollouts
from workers.attempt import Attempt, Services
from workers.draft import Draft
from workers.rollout import rollout

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
CALLS = [make_call("a", "terminal", command="end it"), make_call("b", "terminal", command="ls")]
ENDING = {"kind": "replay", "params": {"messages": [{"role": "assistant", "tool_calls": CALLS}]}}


class Slots:
    """A backend whose slots run nothing and are lost, in the way it is told, by `end it`."""

    capabilities = Capabilities(isolation=True)

    def __init__(self, lost: type[SandboxError] = SlotKilled) -> None:
        self.lost = lost
        self.leased: list[str] = []
        self.released: list[str] = []

    async def prepare(self, spec: SlotSpec) -> None:
        pass

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        self.leased.append(f"s{len(self.leased)}")
        return Slot(self.leased[-1], trajectory_id, f"box-of-{self.leased[-1]}", "/workspace", spec)

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        return [
            self.lost("gone") if each.command == "end it" else ExecutionResult(0, b"", b"", 0.0)
            for each in requests
        ]

    async def release(self, slot: Slot) -> None:
        self.released.append(slot.slot_id)


async def rolled_out(
    backend: Slots, *, earlier: tuple[AttemptRecord, ...] = (), left_s: float = 3600.0, **job: Any
) -> tuple[Draft, TrajectoryFailure | None]:
    fields = {"item": ROW, "agent": {"kind": "nop"}, **job}
    draft = Draft(job=make_job(**fields), attempt=len(earlier) + 1, epoch=1, earlier=earlier)
    draft.clock.total_s = left_s

    async def measured() -> None:
        pass

    failure = None
    try:
        services = Services(cast(Any, backend), ModelSettings())
        await rollout(Attempt(draft=draft, row=ROW, services=services, on_measured=measured))
    except TrajectoryFailure as error:
        failure = error
    return draft, failure


# --- time -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "env", "limits", "left_s"),
    [
        ("setup", "strange_env:SLOW_SETUP", {"setup_timeout_s": 0.05}, 3600.0),
        ("verify", "strange_env:SLOW_VERIFY", {"verify_timeout_s": 0.05}, 3600.0),
        ("setup", "strange_env:SLOW_SETUP", {}, 0.05),
        ("verify", "strange_env:SLOW_VERIFY", {}, 1.5),
    ],
    ids=["setup", "verify", "total-in-setup", "total-in-verify"],
)
async def test_a_stage_ends_at_its_limit_or_at_the_end_of_all_attempts(
    stage: str, env: str, limits: dict[str, float], left_s: float
) -> None:
    backend = Slots()
    draft, failure = await rolled_out(backend, env=env, limits=limits, left_s=left_s)
    assert isinstance(failure, DeadlineExceeded)
    assert (failure.stage, draft.verdict) == (stage, None)
    assert backend.released == backend.leased == ["s0"]


# --- a slot that the agent kills ----------------------------------------------------------


def ended(kind: type[SandboxError], stage: str = "agent") -> AttemptRecord:
    failure = Failure(cause="sandbox", stage=stage, type=kind.__name__, message="gone")
    return AttemptRecord(attempt=1, epoch=1, failure=failure)


@pytest.mark.parametrize(
    ("lost", "earlier"),
    [
        (SlotKilled, ()),
        (SlotKilled, (ended(SlotLost),)),
        (SlotKilled, (ended(SandboxError), ended(SlotLost))),
        (SlotKilled, (ended(SlotKilled, "verify"),)),
        (SlotLost, (ended(SlotKilled),)),
        (SandboxError, (ended(SlotKilled), ended(SlotKilled))),
    ],
)
async def test_a_slot_that_is_lost_otherwise_or_once_is_a_failure_of_the_sandbox(
    lost: type[SandboxError], earlier: tuple[AttemptRecord, ...]
) -> None:
    draft, failure = await rolled_out(Slots(lost), earlier=earlier, agent=ENDING)
    assert (type(failure), getattr(failure, "stage", "")) == (lost, "agent")
    assert (draft.verdict, draft.agent.stop_reason) == (None, None)


async def test_an_agent_that_kills_its_slot_again_is_measured_on_what_an_untouched_one_holds() -> (
    None
):
    backend = Slots()
    draft, failure = await rolled_out(backend, earlier=(ended(SlotKilled),), agent=ENDING)
    assert failure is None
    assert draft.verdict is not None
    assert (draft.agent.stop_reason, draft.verdict.score) == ("slot_killed", 0.0)
    assert (backend.leased, set(backend.released)) == (["s0", "s1"], {"s0", "s1"})
    assert draft.sandbox_id == "box-of-s1"
    answers = [(m.tool_call_id, m.content) for m in draft.agent.messages if m.role == "tool"]
    assert answers == [
        ("a", "The sandbox ended, and with it what was in it."),
        ("b", "Not run: slot_killed."),
    ]


class GradedSlots(Slots):
    """The same; slots whose agents have been in them are also lost by `grade`."""

    def __init__(self, always: bool = False) -> None:
        super().__init__()
        self.always = always
        self.specs: list[SlotSpec] = []

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        self.specs.append(spec)
        return await super().acquire(trajectory_id, spec)

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        return replace(slot, spec=spec or slot.spec)

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        if any(r.command == "grade" and (self.always or r.slot.slot_id == "s0") for r in requests):
            return [SlotKilled("its files take too much space") for _ in requests]
        return await super().execute_batch(requests)


GRADING = "strange_env:GRADING"


@pytest.mark.parametrize(
    ("earlier", "always"),
    [
        ((), False),
        ((ended(SlotLost, "verify"), ended(SlotKilled, "setup")), False),
        ((ended(SlotKilled, "verify"),), True),
    ],
)
async def test_a_slot_that_is_lost_in_grading_once_or_untouched_is_a_failure_of_the_sandbox(
    earlier: tuple[AttemptRecord, ...], always: bool
) -> None:
    draft, failure = await rolled_out(GradedSlots(always), earlier=earlier, env=GRADING)
    assert (type(failure), getattr(failure, "stage", "")) == (SlotKilled, "verify")
    assert draft.verdict is None


@pytest.mark.parametrize("stage", ["agent", "verify"])
async def test_an_agent_whose_work_kills_its_slot_again_in_grading_is_measured_on_an_untouched_one(
    stage: str,
) -> None:
    backend = GradedSlots()
    draft, failure = await rolled_out(backend, earlier=(ended(SlotKilled, stage),), env=GRADING)
    assert failure is None
    assert draft.verdict is not None
    assert (draft.agent.stop_reason, draft.verdict.score) == ("slot_killed", 0.0)
    assert (backend.leased, backend.released) == (["s0", "s1"], ["s0", "s1"])
    assert {spec.profile for spec in backend.specs} == {"default"}


# --- an agent without a turn ------------------------------------------------------------


class WithoutTurn:
    """A client whose model never takes a turn, for the reason that it is told."""

    def __init__(self, why: Exception) -> None:
        self.why = why

    async def complete(self, *_: Any, **__: Any) -> Reply:
        raise self.why


@pytest.mark.parametrize(
    ("why", "limits", "cause"),
    [
        ("This model's maximum context length is 8192 tokens", {}, "model_config"),
        ("", {"agent_timeout_s": 1e-9}, "deadline"),
    ],
    ids=["refused", "no-time"],
)
async def test_an_agent_without_one_turn_is_never_scored(
    why: str, limits: dict[str, float], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = WithoutTurn(ContextLengthExceeded(why))
    monkeypatch.setattr(rollouts, "make_chat", lambda *_: refusing)
    draft, failure = await rolled_out(Slots(), limits=limits)
    assert failure is not None
    assert (failure.cause, failure.stage, draft.verdict) == (cause, "agent", None)
    assert why in str(failure)


async def test_work_that_was_handed_over_without_one_turn_is_never_scored() -> None:
    async def restore(*_: Any) -> None:
        pass

    handed = Draft(job=make_job(item=ROW, agent={"kind": "nop"}), attempt=1, epoch=1)
    handed.is_handed, handed.agent.stop_reason = True, "submitted"
    attempt = Attempt(
        draft=handed,
        row=ROW,
        services=Services(cast(Any, Slots()), ModelSettings()),
        on_measured=restore,
        handover=cast(Any, SimpleNamespace(restore=restore)),
    )
    with pytest.raises(ModelConfigError, match="without a single turn"):
        await rollout(attempt)
    assert handed.verdict is None


@pytest.mark.parametrize("kind", ["nop", "oracle"])
async def test_a_scripted_agent_has_turns_of_its_own_and_is_scored(kind: str) -> None:
    draft, failure = await rolled_out(Slots(), agent={"kind": kind})
    assert (failure, len(draft.agent.turns) > 0) == (None, True)
    assert draft.verdict is not None
