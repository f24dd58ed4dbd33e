"""The agent loop: why it stops, what it counts, what survives a failure."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from slot_bench import leased_slot

from hermes_queue.agent.budget import STUCK_TURNS
from hermes_queue.agent.chat import Reply
from hermes_queue.agent.fault import FIRST_AGAIN_S
from hermes_queue.agent.loop import MAX_CALLS_PER_TURN, AgentResult, run_agent
from hermes_queue.errors import (
    ContextLengthExceeded,
    ModelConfigError,
    ModelError,
    SandboxError,
    TrajectoryFailure,
)
from hermes_queue.models import FunctionCall, Limits, Message, ToolCall, Turn, Usage
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools import Toolbox, ToolContext, make_call

PROMPT = [Message(role="system", content="s"), Message(role="user", content="u")]
SUBMIT = make_call("s", "submit")
Step = Message | Exception | Callable[[], Message]


class Script:
    """A chat client that plays steps and keeps what it was asked."""

    def __init__(self, *steps: Step, tokens: int = 10, finish: str = "stop") -> None:
        self.steps = list(steps)
        self.tokens = tokens
        self.finish = finish
        self.sampling: list[Mapping[str, Any]] = []
        self.seen: list[int] = []

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
    ) -> Reply:
        self.sampling.append(sampling)
        self.seen.append(len(messages))
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        message = step if isinstance(step, Message) else step()
        usage = Usage(prompt_tokens=100, completion_tokens=self.tokens)
        return Reply(message, Turn(usage=usage, finish_reason=self.finish))


def calls(*made: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=made)


def add(n: int) -> ToolCall:
    return make_call(f"c{n}", "calculator", expression=f"{n}+{n}")


def distinct() -> Callable[[], Message]:
    """A step that never calls the same twice."""
    numbers = iter(range(10_000))
    return lambda: calls(add(next(numbers)))


def broken(arguments: str = "{") -> Message:
    return calls(ToolCall(id="b", function=FunctionCall(name="calculator", arguments=arguments)))


def worker_tools() -> Toolbox:
    """Tools that run in the worker, so that there is nothing behind the slot."""
    slot = Slot("s", "t", "b", "/workspace", SlotSpec())
    context = SlotContext(cast(Any, None), slot, deadline=time.monotonic() + 60)
    return Toolbox(("calculator", "submit"), ToolContext(context, 10.0, 4096))


async def run(
    chat: Script, *, limits: Limits | None = None, seconds: float = 60.0, **more: Any
) -> AgentResult:
    return await run_agent(
        chat,
        more.pop("toolbox", None) or worker_tools(),
        PROMPT,
        limits=limits or Limits(),
        sampling=more.pop("sampling", {}),
        deadline=time.monotonic() + seconds,
        **more,
    )


async def test_an_answer_without_calls_ends_it() -> None:
    result = await run(Script(Message(role="assistant", content="42")))
    assert result.stop_reason == "no_tool_call"
    assert [m.role for m in result.messages] == ["system", "user", "assistant"]
    assert len(result.turns) == 1


async def test_observations_follow_their_calls_in_order() -> None:
    result = await run(Script(calls(add(1), add(2)), Message(role="assistant", content="done")))
    assert [(m.role, m.content, m.tool_call_id) for m in result.messages[3:5]] == [
        ("tool", "2", "c1"),
        ("tool", "4", "c2"),
    ]


async def test_a_submitting_call_ends_it_and_later_calls_are_answered() -> None:
    result = await run(Script(calls(add(1), SUBMIT, add(2))))
    assert result.stop_reason == "submitted"
    assert [m.content for m in result.messages[-2:]] == ["submitted", "Not run: submitted."]
    assert result.tool_calls.attempted == 2


async def test_the_turn_limit_holds() -> None:
    result = await run(Script(distinct()), limits=Limits(max_turns=4))
    assert (result.stop_reason, len(result.turns)) == ("max_turns", 4)


async def test_the_token_limit_holds_and_lowers_the_cap_of_each_request() -> None:
    chat = Script(distinct(), tokens=40)
    result = await run(chat, limits=Limits(max_tokens=100), sampling={"max_tokens": 50})
    assert (result.stop_reason, len(result.turns)) == ("max_tokens", 3)
    assert [s["max_tokens"] for s in chat.sampling] == [50, 50, 20]


async def test_the_token_limit_uses_the_name_the_job_uses() -> None:
    chat = Script(Message(role="assistant", content="x"))
    limits = Limits(max_tokens=100)
    await run(chat, limits=limits, sampling={"max_completion_tokens": 500})
    assert chat.sampling == [{"max_completion_tokens": 100}]


async def test_a_reply_cut_off_by_its_token_cap_is_no_natural_end() -> None:
    chat = Script(Message(role="assistant", content="I will now"), finish="length")
    assert (await run(chat)).stop_reason == "max_tokens"


async def test_an_overlong_conversation_is_an_outcome() -> None:
    result = await run(Script(calls(add(1)), ContextLengthExceeded("too long")))
    assert result.stop_reason == "context_length"
    assert {"turn": 1, "event": "context_length", "message": "too long"} in result.events


async def test_running_out_of_time_is_an_outcome() -> None:
    assert (await run(Script(distinct()), seconds=-1)).stop_reason == "time_limit"
    assert (await run(Script(calls(add(1)), TimeoutError()))).stop_reason == "time_limit"


async def test_an_agent_without_a_single_reply_is_not_measured() -> None:
    with pytest.raises(ModelError, match="before the model's first reply"):
        await run(Script(TimeoutError()))


async def test_consecutive_turns_without_a_valid_call_end_it() -> None:
    result = await run(Script(broken()), limits=Limits(max_format_errors=3))
    assert (result.stop_reason, len(result.turns)) == ("format_errors", 3)
    assert result.tool_calls.schema_valid == 0


async def test_one_valid_call_resets_the_count_of_format_errors() -> None:
    mixed = calls(*(broken().tool_calls), add(1))
    chat = Script(broken(), mixed, broken("[]"), Message(role="assistant", content="x"))
    result = await run(chat, limits=Limits(max_format_errors=2))
    assert result.stop_reason == "no_tool_call"


async def test_the_same_step_with_the_same_outcome_over_and_over_is_stuck() -> None:
    result = await run(Script(calls(add(1))))
    assert (result.stop_reason, len(result.turns)) == ("stuck", STUCK_TURNS)


async def test_calls_are_counted_by_how_far_they_got() -> None:
    failing = make_call("f", "calculator", expression="1/0")
    unknown = make_call("u", "teleport")
    result = await run(Script(calls(add(1), failing, unknown, *broken().tool_calls), calls(SUBMIT)))
    assert result.tool_calls.model_dump() == {
        "attempted": 5,
        "schema_valid": 3,
        "ok": 2,
        "error": 1,
    }


async def test_a_flood_of_calls_is_answered_but_not_run() -> None:
    flood = calls(*(add(n) for n in range(MAX_CALLS_PER_TURN + 5)))
    result = await run(Script(flood, calls(SUBMIT)))
    refused = [m for m in result.messages if (m.content or "").startswith("Not run")]
    assert len(refused) == 5
    assert result.tool_calls.schema_valid == MAX_CALLS_PER_TURN + 1


async def test_usage_is_summed_over_turns() -> None:
    result = await run(Script(calls(add(1)), Message(role="assistant", content="x")))
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (200, 20)


async def test_two_runs_of_the_same_script_are_the_same() -> None:
    first, second = [
        await run(Script(calls(add(1), SUBMIT, add(2)), finish="tool_calls")) for _ in range(2)
    ]
    assert first == second


async def test_everything_so_far_survives_a_failing_endpoint() -> None:
    kept = AgentResult()
    with pytest.raises(ModelError, match="gone"):
        await run(Script(calls(add(1)), ModelError("gone")), into=kept)
    assert [m.role for m in kept.messages] == ["system", "user", "assistant", "tool"]
    assert kept.stop_reason is None
    assert kept.tool_calls.ok == 1


WORKS = Message(role="assistant", content="Hel")
"""The answer to the first call, which is made once more when another one fails."""


def because_of(status: int, failure: TrajectoryFailure) -> TrajectoryFailure:
    failure.__cause__ = type("StatusError", (Exception,), {"status_code": status})()
    return failure


@pytest.mark.parametrize(
    "crash",
    [because_of(500, ModelError("it failed")), because_of(400, ModelConfigError("it failed"))],
)
async def test_a_call_at_which_a_working_server_fails_again_ends_the_agent_and_is_scored(
    crash: TrajectoryFailure,
) -> None:
    chat = Script(calls(add(1)), crash, WORKS, crash, WORKS)
    result = await run(chat)
    assert result.stop_reason == "format_errors"
    assert chat.seen == [2, 4, 2, 4, 2]
    assert len(result.turns) == 1, "what only shows that the server works is no turn"
    assert {"turn": 1, "event": "call_at_fault", "message": "it failed"} in result.events


async def test_a_server_that_was_away_for_a_while_is_asked_the_same_again() -> None:
    away = because_of(500, ModelError("3 tries failed"))
    result = await run(Script(calls(add(1)), away, WORKS, Message(role="assistant", content="2")))
    assert (result.stop_reason, result.messages[-1].content) == ("no_tool_call", "2")


async def test_a_server_that_refuses_the_first_call_too_is_set_up_wrongly() -> None:
    wrong = because_of(400, ModelConfigError("temperature must be 1"))
    with pytest.raises(ModelConfigError, match="temperature"):
        await run(Script(calls(add(1)), wrong))


async def test_the_first_call_has_its_own_time_when_it_is_made_once_more() -> None:
    """Else an agent could wait for its deadline with such a call, and have nothing scored."""
    deadlines: list[float] = []

    class Watched(Script):
        async def complete(self, *asked: Any) -> Reply:
            deadlines.append(asked[3])
            return await super().complete(*asked)

    crash = because_of(500, ModelError("it failed"))
    await run(Watched(calls(add(1)), crash, WORKS, crash, WORKS), seconds=FIRST_AGAIN_S / 2)
    _, failed, again, failed_again, at_last = deadlines
    assert min(again - failed, at_last - failed_again) > FIRST_AGAIN_S / 4


async def test_a_server_that_fails_at_the_first_call_is_at_fault() -> None:
    chat = Script(ModelError("gone"))
    with pytest.raises(ModelError, match="gone"):
        await run(chat)
    assert chat.seen == [2]


async def test_everything_so_far_survives_a_lost_sandbox() -> None:
    kept = AgentResult()
    async with leased_slot() as slot:
        toolbox = Toolbox(("terminal",), ToolContext(slot, 10.0, 4096))
        old = slot.slot
        await slot.renew()
        slot.slot = old
        with pytest.raises(SandboxError):
            await run(
                Script(calls(make_call("c", "terminal", command="true"))),
                toolbox=toolbox,
                into=kept,
            )
    assert [m.role for m in kept.messages] == ["system", "user", "assistant"]
    assert kept.tool_calls.attempted == 1


async def test_a_command_is_cut_off_at_the_deadline_of_the_agent_stage() -> None:
    async with leased_slot(seconds=1.0) as slot:
        toolbox = Toolbox(("terminal",), ToolContext(slot, 600.0, 4096))
        sleep = make_call("c1", "terminal", command="echo begun; sleep 600")
        after = make_call("c2", "terminal", command="true")
        result = await run(Script(calls(sleep, after)), toolbox=toolbox, seconds=1.0)
    assert result.stop_reason == "time_limit"
    assert result.messages[-1].content == "Not run: time_limit."


async def test_the_worker_may_hold_it_between_turns_and_that_costs_no_time() -> None:
    toolbox = worker_tools()
    stage_ends = toolbox.context.slot.deadline
    gate = asyncio.Event()
    seen: list[int] = []

    async def before_turn() -> None:
        seen.append(len(chat.seen))
        await gate.wait()

    chat = Script(calls(add(1)), Message(role="assistant", content="x"))
    task = asyncio.create_task(run(chat, toolbox=toolbox, before_turn=before_turn, seconds=2.0))
    await asyncio.sleep(2.2)
    assert not chat.seen
    gate.set()
    result = await task
    assert seen == [0, 1]
    assert result.stop_reason == "no_tool_call"
    assert result.waited_s > 2.0
    assert toolbox.context.slot.deadline == pytest.approx(stage_ends + result.waited_s)


async def test_what_the_worker_raises_between_turns_passes_through() -> None:
    async def before_turn() -> None:
        raise asyncio.CancelledError

    kept = AgentResult()
    with pytest.raises(asyncio.CancelledError):
        await run(Script(distinct()), before_turn=before_turn, into=kept)
    assert len(kept.messages) == 2


async def test_rewrites_by_the_client_are_kept_as_events() -> None:
    class Rewriting(Script):
        async def complete(self, *args: Any, **kwargs: Any) -> Reply:
            reply = await super().complete(*args, **kwargs)
            return Reply(
                reply.message, reply.turn, ({"event": "arguments_rewritten", "call": "b"},)
            )

    result = await run(Rewriting(Message(role="assistant", content="x")))
    assert result.events[0] == {"turn": 0, "event": "arguments_rewritten", "call": "b"}
    assert result.events[-1] == {"turn": 1, "event": "stop", "reason": "no_tool_call"}
    json.dumps(result.events)


async def test_the_cost_limit_ends_the_agent():
    result = await run(Script(distinct()), limits=Limits(max_cost_usd=0.3), cost_usd=per_turn(0.1))
    assert (result.stop_reason, len(result.turns)) == ("max_cost", 3)


async def test_a_cost_limit_without_a_known_price_is_a_wrong_setting():
    with pytest.raises(ModelConfigError, match="HERMES_QUEUE_MODEL_PRICES"):
        await run(Script(distinct()), limits=Limits(max_cost_usd=0.3))


def per_turn(price: float) -> Callable[[Usage], float]:
    return lambda usage: round(price * usage.completion_tokens / 10, 6)


async def test_a_watcher_sees_every_reply_before_its_calls_are_answered():
    roles: list[str] = []

    def watch(result: AgentResult) -> None:
        roles.extend(message.role for message in result.messages[len(roles) :])
        sizes.append((len(result.messages), len(result.turns)))

    sizes: list[tuple[int, int]] = []
    steps = calls(add(1), add(2)), Message(role="assistant", content="done")
    await run(Script(*steps), into=AgentResult(watch=watch))
    assert sizes == [(2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (6, 2)]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
