"""An agent that is continued is in the state of one that was never interrupted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import pytest

from hermes_queue.agent.chat import Reply
from hermes_queue.agent.context import ContextControl
from hermes_queue.agent.loop import MAX_CALLS_PER_TURN, STUCK_TURNS, AgentResult, run_agent
from hermes_queue.agent.resumption import Continuation, LoopState
from hermes_queue.errors import ContextLengthExceeded
from hermes_queue.models import Limits, Message, ToolCall, Turn, Usage
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools import Toolbox, ToolContext, make_call
from hermes_queue.tools.toolbox import ToolOutcome

PROMPT = [Message(role="system", content="Be brief."), Message(role="user", content="Add.")]


class Sums:
    """Asks for long sums. Its replies follow from the number of turns; its context is `context`."""

    def __init__(self, context: int = 10**9, *, turns: int = 12, same: bool = False) -> None:
        self.context = context
        self.turns = turns
        self.same = same
        self.turn = 0
        self.views: list[list[Message]] = []

    def state(self) -> dict[str, Any]:
        return {"turn": self.turn}

    def resume(self, state: Mapping[str, Any], turns: int) -> None:
        assert state["turn"] == turns
        self.turn = turns

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
    ) -> Reply:
        used = sum(len(message.model_dump_json()) for message in messages) // 4
        if used >= self.context:
            raise ContextLengthExceeded("too long")
        self.views.append(list(messages))
        self.turn += 1
        number = 0 if self.same else self.turn
        sums = "+".join([str(number)] * 60)
        call = make_call(f"c{number}", "calculator", expression=sums)
        done = self.turn >= self.turns
        message = Message(role="assistant", content="x" * 100, tool_calls=() if done else (call,))
        usage = Usage(prompt_tokens=used, completion_tokens=10)
        return Reply(message, Turn(usage=usage, finish_reason="stop"))


class Kept:
    """Keeps what there is after every turn."""

    def __init__(self, result: AgentResult) -> None:
        self.result = result
        self.states: list[tuple[AgentResult, LoopState]] = []

    async def settled(self) -> None: ...

    def stepped(self, state: LoopState) -> None:
        self.states.append((deepcopy(self.result), state))


class Long(Toolbox):
    """Observations of 2 KB."""

    async def call(self, call: ToolCall) -> ToolOutcome:
        outcome = await super().call(call)
        return replace(outcome, text=f"{outcome.text}:{'x' * 2000}")


def tools() -> Toolbox:
    slot = Slot("s", "t", "b", "/workspace", SlotSpec())
    context = SlotContext(cast(Any, None), slot, deadline=time.monotonic() + 60)
    return Long(("calculator",), ToolContext(context, 10.0, 4096))


async def run(
    chat: Any, params: Mapping[str, Any], kept: tuple[AgentResult, LoopState] | None = None
) -> tuple[AgentResult, Kept]:
    result, toolbox = (kept[0] if kept else AgentResult()), tools()
    continues = None
    if kept:
        schemas = toolbox.schemas
        continues = Continuation.of(
            result, len(PROMPT), schemas, params, kept[1], MAX_CALLS_PER_TURN
        )
    checkpoints = Kept(result)
    await run_agent(
        chat,
        toolbox,
        PROMPT,
        limits=Limits(),
        sampling={},
        deadline=time.monotonic() + 60,
        context=ContextControl(params),
        into=result,
        checkpoints=checkpoints,
        continues=continues,
    )
    return result, checkpoints


@pytest.mark.parametrize("policy", ["error", "truncate_tools", "drop_oldest"])
@pytest.mark.parametrize("known", [True, False], ids=["known-length", "refused"])
async def test_the_view_of_a_long_conversation_goes_on_as_it_was(policy: str, known: bool) -> None:
    params = {"context": policy} | ({"context_tokens": 3000} if known else {})
    chat = Sums(3000)
    whole, kept = await run(chat, params)
    if policy != "error":
        assert any(event["event"] == "context_rewrite" for event in whole.events)
    for state in kept.states:
        again = Sums(3000)
        turns = len(state[0].turns)
        resumed, _ = await run(again, params, state)
        assert again.views == chat.views[turns:]
        assert (resumed.messages, resumed.events) == (whole.messages, whole.events)
        assert resumed.stop_reason == whole.stop_reason


async def test_an_agent_that_repeats_itself_is_stuck_as_soon_as_it_would_have_been() -> None:
    whole, kept = await run(Sums(same=True), {})
    assert (whole.stop_reason, len(whole.turns)) == ("stuck", STUCK_TURNS)
    resumed, _ = await run(Sums(same=True), {}, kept.states[4])
    assert (resumed.stop_reason, len(resumed.turns)) == ("stuck", STUCK_TURNS)


async def test_turns_that_do_not_fit_their_messages_are_not_continued() -> None:
    _, kept = await run(Sums(), {})
    result, state = kept.states[3]
    answers = result.messages.pop()
    with pytest.raises(ValueError, match="calls without answers"):
        await run(Sums(), {}, (result, state))
    result.messages += [answers, Message(role="assistant")]
    with pytest.raises(ValueError, match="4 turns, but 5 replies"):
        await run(Sums(), {}, (result, state))
    rewrite = {"turn": 2, "event": "context_rewrite"}
    result, state = kept.states[2]
    result.events.append(rewrite)
    with pytest.raises(ValueError, match="the context"):
        await run(Sums(), {}, (result, state))
