"""Context control: what of a conversation is sent once it grows too long."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from hermes_queue.agent.chat import Reply
from hermes_queue.agent.context import KEPT_BYTES, THRESHOLD, ContextControl
from hermes_queue.agent.loop import AgentResult, run_agent
from hermes_queue.agent.tokens.merge import merge_with_breaks
from hermes_queue.errors import ContextLengthExceeded, ModelConfigError
from hermes_queue.models import FunctionCall, Limits, Message, ToolCall, Turn, Usage
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools import Toolbox, ToolContext

PROMPT = [Message(role="system", content="Be brief."), Message(role="user", content="Add.")]
REWRITERS = ("truncate_tools", "drop_oldest")


class Model:
    """Calls the calculator `turns - 1` times; its context is `context` tokens."""

    def __init__(
        self, context: int, turns: int, *, tokens_per_byte: float = 0.25, calls: int = 1
    ) -> None:
        self.context = context
        self.turns = turns
        self.rate = tokens_per_byte
        self.calls = calls
        self.views: list[list[Message]] = []
        self.caps: list[int | None] = []
        self.refusals = 0

    def ids(self, messages: Sequence[Message]) -> list[int]:
        text = "\n".join(message.model_dump_json() for message in messages)
        step = round(1 / self.rate)
        return [hash(text[i : i + step]) % 50_000 for i in range(0, len(text), step)]

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
    ) -> Reply:
        prompt = self.ids(messages)
        if len(prompt) >= self.context:
            self.refusals += 1
            raise ContextLengthExceeded("too long")
        self.views.append(list(messages))
        self.caps.append(sampling.get("max_tokens"))
        turn = len(self.views)
        if turn >= self.turns:
            message = Message(role="assistant", content="done")
        else:
            message = Message(
                role="assistant",
                tool_calls=tuple(
                    ToolCall(
                        id=f"c{turn}_{i}",
                        function=FunctionCall(
                            name="calculator",
                            arguments=json.dumps({"expression": f"{turn}+{i}"}),
                        ),
                    )
                    for i in range(self.calls)
                ),
            )
        usage = Usage(prompt_tokens=len(prompt), completion_tokens=10)
        return Reply(
            message,
            Turn(
                prompt_ids=tuple(prompt),
                completion_ids=(1,) * 10,
                logprobs=(0.0,) * 10,
                usage=usage,
                finish_reason="stop",
            ),
        )


class Long(Toolbox):
    """Observations of `size` bytes."""

    size = 2000

    async def call(self, call: ToolCall) -> Any:
        outcome = await super().call(call)
        text = f"{outcome.text}:{call.id}:" + "x" * self.size
        return type(outcome)(text, outcome.schema_valid, outcome.ok, outcome.submits)


def long_tools(size: int = 2000) -> Toolbox:
    slot = Slot("s", "t", "b", "/workspace", SlotSpec())
    context = SlotContext(cast(Any, None), slot, deadline=time.monotonic() + 60)
    toolbox = Long(("calculator",), ToolContext(context, 10.0, 4096))
    toolbox.size = size
    return toolbox


async def run(
    model: Any, params: dict[str, Any], *, size: int = 2000, **sampling: Any
) -> AgentResult:
    return await run_agent(
        model,
        long_tools(size),
        PROMPT,
        limits=Limits(max_turns=500),
        sampling=sampling,
        deadline=time.monotonic() + 60,
        context=ContextControl(params),
    )


def rewrites(result: AgentResult) -> list[dict[str, Any]]:
    return [event for event in result.events if event["event"] == "context_rewrite"]


def check_legal(view: Sequence[Message]) -> None:
    """Every result follows its call, every call but those of the last message has its results."""
    assert view[:2] == PROMPT
    open_calls: list[str] = []
    for message in view[2:]:
        if message.role == "tool":
            assert open_calls.pop(0) == message.tool_call_id
        else:
            assert open_calls == []
            assert message.role == "assistant"
            open_calls = [call.id for call in message.tool_calls]
    assert open_calls == []


# --- policies ---------------------------------------------------------------------------


async def test_by_default_an_overlong_conversation_ends_the_trajectory() -> None:
    model = Model(context=4000, turns=50)
    result = await run(model, {})
    assert result.stop_reason == "context_length"
    assert rewrites(result) == []
    assert model.refusals == 1


@pytest.mark.parametrize("policy", REWRITERS)
@pytest.mark.parametrize("tokens", [4000, None], ids=["budgeted", "refused"])
async def test_a_policy_keeps_the_trajectory_going(policy: str, tokens: int | None) -> None:
    model = Model(context=4000, turns=12)
    params = {"context": policy} | ({"context_tokens": tokens} if tokens else {})
    result = await run(model, params)
    assert result.stop_reason == "no_tool_call"
    assert len(model.views) == 12
    assert {event["reason"] for event in rewrites(result)} == {"threshold" if tokens else "refused"}
    assert (model.refusals == 0) == bool(tokens)


@pytest.mark.parametrize("policy", REWRITERS)
async def test_the_prompt_stays_and_no_result_is_orphaned(policy: str) -> None:
    for calls in (1, 3):
        model = Model(context=6000, turns=30, calls=calls)
        result = await run(model, {"context": policy, "context_tokens": 6000}, size=1500)
        assert rewrites(result)
        for view in model.views:
            check_legal(view)


@pytest.mark.parametrize("policy", REWRITERS)
async def test_the_record_keeps_the_whole_conversation_and_says_what_was_sent(policy: str) -> None:
    model = Model(context=4000, turns=10)
    result = await run(model, {"context": policy, "context_tokens": 4000})
    assert sum(m.role == "assistant" for m in result.messages) == 10
    assert all(len(m.content or "") > 2000 for m in result.messages if m.role == "tool")
    touched = {i for event in rewrites(result) for i in event["messages"]}
    last = model.views[-1]
    transcript = result.messages[:-1]
    if policy == "drop_oldest":
        assert last == [m for i, m in enumerate(transcript) if i not in touched]
    else:
        assert len(last) == len(transcript)
        assert {i for i, m in enumerate(transcript) if last[i] != m} == touched
        assert all(len((last[i].content or "").encode()) <= KEPT_BYTES for i in touched)


async def test_a_truncated_output_keeps_its_head_and_the_last_step_is_never_touched() -> None:
    model = Model(context=4000, turns=10)
    await run(model, {"context": "truncate_tools", "context_tokens": 4000})
    for view in model.views[1:]:
        assert len(view[-1].content or "") > 2000
        assert all(":c" in (m.content or "")[:12] for m in view if m.role == "tool")


async def test_a_conversation_that_cannot_be_shortened_ends_with_context_length() -> None:
    model = Model(context=300, turns=10)
    for policy in REWRITERS:
        result = await run(model, {"context": policy, "context_tokens": 300})
        assert result.stop_reason == "context_length"


@pytest.mark.parametrize("policy", REWRITERS)
async def test_each_rewrite_breaks_the_token_sequence_and_nothing_else_does(policy: str) -> None:
    model = Model(context=4000, turns=14)
    result = await run(model, {"context": policy, "context_tokens": 4000})
    grown = [
        later[: len(earlier)] == earlier
        for earlier, later in pairwise([m.model_dump() for m in view] for view in model.views)
    ]
    sent = {event["turn"] for event in rewrites(result)} - {len(model.views)}
    assert grown.count(False) == len(sent) > 0
    merged = merge_with_breaks(result.turns)
    assert merged is not None
    sequences, breaks = merged
    assert len(sequences) == len(breaks) + 1


# --- budgets ----------------------------------------------------------------------------


async def test_completions_are_capped_to_what_the_context_leaves() -> None:
    model = Model(context=3000, turns=50)
    result = await run(model, {"context_tokens": 3000}, max_tokens=1000)
    assert result.stop_reason == "context_length"
    assert model.refusals == 0, "it is known beforehand"
    first, *later = model.caps
    assert first == 1000
    for cap, view in zip(later, model.views[1:], strict=True):
        assert cap is not None
        assert len(model.ids(view)) + cap <= 3000
    assert later[-1] is not None
    assert later[-1] < 1000


async def test_without_a_report_of_the_server_nothing_is_capped() -> None:
    model = Model(context=3000, turns=1)
    await run(model, {"context_tokens": 3000})
    assert model.caps == [None]


async def test_a_reply_cut_off_by_the_context_says_so() -> None:
    class Cut(Model):
        async def complete(self, *args: Any) -> Reply:
            reply = await super().complete(*args)
            if reply.message.tool_calls:
                return reply
            turn = reply.turn.model_copy(update={"finish_reason": "length"})
            return Reply(reply.message, turn)

    for tokens, reason in ((3000, "context_length"), (300_000, "max_tokens")):
        model = Cut(context=300_000, turns=4)
        result = await run(model, {"context_tokens": tokens}, max_tokens=2000)
        assert result.stop_reason == reason


@pytest.mark.parametrize("policy", REWRITERS)
@pytest.mark.parametrize("rate", [0.2, 0.25, 0.5])
@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 5), marks=pytest.mark.exhaustive)]
)
async def test_the_budget_holds_for_any_sizes_and_tokenizers(
    policy: str, rate: float, seeds: range
) -> None:
    for seed in seeds:
        dice, tools = random.Random(seed), long_tools()

        class Varied(Model):
            async def complete(self, *args: Any, dice: Any = dice, tools: Any = tools) -> Reply:
                tools.size = dice.randrange(10, 3000)
                return await super().complete(*args)

        model = Varied(context=8000, turns=60, tokens_per_byte=rate)
        result = await run_agent(
            model,
            tools,
            PROMPT,
            limits=Limits(max_turns=500),
            sampling={},
            deadline=time.monotonic() + 60,
            context=ContextControl({"context": policy, "context_tokens": 8000}),
        )
        for view in model.views:
            check_legal(view)
            assert len(model.ids(view)) <= 8000
        if policy == "drop_oldest":
            assert result.stop_reason == "no_tool_call"
            assert len(rewrites(result)) < 20, "each makes room for several turns"


def test_a_rewrite_waits_for_the_threshold() -> None:
    control = ContextControl({"context": "drop_oldest", "context_tokens": 1000})
    control.begin(PROMPT, [])
    step = [
        Message(role="assistant", tool_calls=(ToolCall(id="a", function=_ADD),)),
        Message(role="tool", content="2", tool_call_id="a"),
    ]
    control.view(PROMPT)
    last = Message(role="assistant", content="end")
    at = int(THRESHOLD * 1000)
    control.observed(Usage(prompt_tokens=at - 1, completion_tokens=0), last)
    assert control.view([*PROMPT, last])[1] is None
    control.observed(Usage(prompt_tokens=at + 1, completion_tokens=0), last)
    assert control.view([*PROMPT, last])[1] is None, "nothing to drop"
    assert control.view([*PROMPT, last, *step, last])[1] is not None


_ADD = FunctionCall(name="calculator", arguments='{"expression": "1+1"}')


@pytest.mark.parametrize(
    "params",
    [{"context": "summary"}, {"context_tokens": 0}, {"context_tokens": "4k"}, {"context": None}],
    ids=str,
)
def test_wrong_params_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match="context"):
        ContextControl(params)
