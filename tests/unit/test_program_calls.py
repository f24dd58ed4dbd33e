"""The calls of a program: which are made, which get a reply that is there, which are refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from hermes_queue.agent.budget import STUCK_TURNS, AttemptBudget
from hermes_queue.agent.capture import session as sessions
from hermes_queue.agent.capture.allowance import CALLS_AT_LEAST
from hermes_queue.agent.capture.calls import Answer, ModelCall, Refused
from hermes_queue.agent.capture.equality import measured
from hermes_queue.agent.capture.session import MAX_OTHER_REQUESTS, AttemptSession, fits
from hermes_queue.agent.capture.tree import ReplyTree
from hermes_queue.agent.chat import Reply
from hermes_queue.agent.loop import AgentResult
from hermes_queue.errors import (
    ContextLengthExceeded,
    ModelConfigError,
    ModelError,
    TrajectoryFailure,
)
from hermes_queue.models import FunctionCall, Limits, Message, ToolCall, Turn, Usage
from hermes_queue.telemetry.otel.timeline import Timeline

TASK = "Write hello into answer.txt."
Step = str | Message | Exception | Callable[[], Awaitable[str]]


class Model:
    """A chat client that plays steps, the last one again and again."""

    def __init__(self, *steps: Step, tokens: int = 10) -> None:
        self.steps = list(steps) or ["Done."]
        self.tokens = tokens
        self.sampling: list[Mapping[str, Any]] = []
        self.open = self.most_open = 0

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
        **_: Any,
    ) -> Reply:
        self.sampling.append(sampling)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            if isinstance(step, Exception):
                raise step
            if callable(step):
                step = await step()
        finally:
            self.open -= 1
        message = step if isinstance(step, Message) else Message(role="assistant", content=step)
        usage = Usage(prompt_tokens=100, completion_tokens=self.tokens)
        return Reply(message, Turn(usage=usage, finish_reason="stop"))


class Attempt:
    """A session, and what it is made of."""

    def __init__(
        self,
        model: Model,
        *,
        sampling: Mapping[str, Any] | None = None,
        before_turn: Callable[[], Awaitable[None]] | None = None,
        time_s: float = 60.0,
        **limits: Any,
    ) -> None:
        self.result = AgentResult()
        self.model = model
        self.budget = AttemptBudget(Limits(**limits), sampling or {}, time.monotonic() + time_s)
        tree = ReplyTree(self.result, TASK, history="sampled")
        self.session = AttemptSession(
            model, tree, self.budget, self.result, model="m", before_turn=before_turn
        )

    async def ask(self, call: ModelCall) -> Answer:
        """Ask, and take the reply."""
        answer = await self.session.answer(call)
        self.session.delivered(answer)
        return answer

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.result.events if event["event"] == kind]


def call(text: str = TASK, *more: Message, **fields: Any) -> ModelCall:
    messages = (Message(role="user", content=text), *more)
    return ModelCall("chat", "/v1/chat/completions", messages, **fields)


def longer(turns: int) -> ModelCall:
    """The conversation after so many turns, each of which said something else."""
    more = [
        Message(role=role, content=f"{role} {turn}")
        for turn in range(turns)
        for role in ("assistant", "user")
    ]
    return call(TASK, *more)  # type: ignore[arg-type]


async def refused(attempt: Attempt, asked: ModelCall) -> str:
    """Why a call is refused: its kind."""
    with pytest.raises(Refused) as raised:
        await attempt.ask(asked)
    return raised.value.kind


async def settled() -> None:
    """Let tasks run until they wait for something."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_calls_of_an_attempt_that_is_traced_are_noted_with_their_answers() -> None:
    attempt = Attempt(Model("one", ModelError("away")))
    attempt.result.timeline = timeline = Timeline(keeps_content=True)
    await attempt.ask(call())
    await refused(attempt, longer(1))
    answered, failed = timeline.model_calls
    assert answered.answer.turn.usage.completion_tokens == 10
    assert (failed.answer, type(failed.error)) == (None, ModelError)
    assert answered.began <= answered.ended <= failed.began <= failed.ended


# --- limits -----------------------------------------------------------------------------


async def test_a_call_beyond_the_last_turn_is_refused_and_ends_the_attempt() -> None:
    attempt = Attempt(Model("one", "two"), max_turns=2)
    assert [(await attempt.ask(longer(turn))).turn for turn in range(2)] == [0, 1]
    assert not attempt.session.ended.is_set()
    assert await refused(attempt, longer(2)) == "stopped"
    assert (attempt.session.stop_reason, len(attempt.model.sampling)) == ("max_turns", 2)


async def test_calls_beside_the_task_use_no_turn_but_are_bounded() -> None:
    attempt = Attempt(Model(), max_turns=1)
    await attempt.ask(call())
    for number in range(CALLS_AT_LEAST - 1):
        await attempt.ask(call(f"Name file {number}."))
    assert await refused(attempt, call("Name one more.")) == "stopped"
    assert attempt.session.stop_reason == "max_turns"


async def test_conversations_that_overtake_each_other_have_no_more_turns_than_one_may() -> None:
    attempt = Attempt(Model(), max_turns=5)
    done = [Message(role="assistant", content="Done."), Message(role="user", content="Go on.")]
    for number in range(10):  # each of them is the main one as soon as it is the longest
        for turn in range(5 + number):
            with suppress(Refused):
                await attempt.ask(call(f"Conversation {number}.", *(turn * done)))
    labels = [attempt.result.branches[turn.branch or 0].label for turn in attempt.result.turns]
    assert (labels.count("main"), attempt.session.stop_reason) == (5, "max_turns")


async def test_calls_that_failed_use_no_turn() -> None:
    attempt = Attempt(Model(ContextLengthExceeded("long"), "fine"), max_turns=1)
    assert await refused(attempt, call()) == "context_length"
    assert (await attempt.ask(longer(1))).message.content == "fine"


@pytest.mark.parametrize(
    ("job", "wanted", "limit", "sent"),
    [
        ({}, None, None, None),
        ({"max_tokens": 500}, 65536, None, 500),
        ({"max_tokens": 500}, 100, None, 100),
        ({}, 100, None, 100),
        ({}, 65536, 40, 40),
        ({"max_tokens": 500}, None, 40, 40),
        ({"max_tokens": 500}, 7, 40, 7),
        ({"max_tokens": 500}, 0, None, 500),
    ],
)
async def test_a_reply_is_as_long_as_job_program_and_limit_allow(
    job: dict[str, int], wanted: int | None, limit: int | None, sent: int | None
) -> None:
    attempt = Attempt(Model(), sampling={"temperature": 0.5, **job}, max_tokens=limit)
    await attempt.ask(call(max_tokens=wanted))
    [sampling] = attempt.model.sampling
    assert (sampling.get("max_tokens"), sampling["temperature"]) == (sent, 0.5)


async def test_calls_at_the_same_time_share_what_is_left_of_the_tokens() -> None:
    attempt = Attempt(Model(), max_tokens=25)
    asked = [attempt.ask(call(TASK, max_tokens=10, retry_count=n)) for n in range(4)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each).__name__ for each in answers] == ["Answer"] * 3 + ["Refused"]
    assert [sampling["max_tokens"] for sampling in attempt.model.sampling] == [10, 10, 5]
    assert attempt.session.stop_reason == "max_tokens"


async def test_a_limited_cost_without_a_price_is_a_wrong_configuration() -> None:
    attempt = Attempt(Model(), max_cost_usd=1.0)
    assert await refused(attempt, call()) == "upstream"
    assert isinstance(attempt.session.failure, ModelConfigError)


async def test_time_is_up_before_a_call_or_during_one() -> None:
    before = Attempt(Model(), time_s=-1.0)
    assert (await refused(before, call()), before.session.stop_reason) == ("stopped", "time_limit")
    during = Attempt(Model(TimeoutError()))
    assert (await refused(during, call()), during.session.stop_reason) == ("stopped", "time_limit")


async def test_waiting_before_calls_moves_the_deadline_once() -> None:
    release = asyncio.Event()

    async def paused() -> None:
        await release.wait()

    attempt = Attempt(Model(), before_turn=paused)
    before, began = attempt.budget.deadline, time.monotonic()
    asked = [asyncio.create_task(attempt.ask(call(f"{TASK} {n}"))) for n in range(5)]
    await settled()
    await asyncio.sleep(0.05)
    release.set()
    await asyncio.gather(*asked)
    moved_s = attempt.budget.deadline - before
    assert 0.05 <= moved_s <= time.monotonic() - began
    assert attempt.result.waited_s == pytest.approx(moved_s)


# --- replies and who gets them ------------------------------------------------------------


async def test_a_retry_joins_the_call_whose_client_went_away() -> None:
    release = asyncio.Event()

    async def slowly() -> str:
        await release.wait()
        return "slow"

    attempt = Attempt(Model(slowly, "another"))
    gone = asyncio.create_task(attempt.session.answer(call()))
    await settled()
    gone.cancel()
    await asyncio.wait([gone])
    retry = asyncio.create_task(attempt.ask(call(retry_count=1, streamed=True)))
    await settled()
    release.set()
    assert (await retry).message.content == "slow"
    assert (len(attempt.result.turns), len(attempt.model.sampling)) == (1, 1)
    assert attempt.events("retry_after_delivery") == []


async def test_a_reply_that_did_not_arrive_is_given_again_and_once() -> None:
    attempt = Attempt(Model("first", "second"))
    lost = await attempt.session.answer(call())
    attempt.session.undelivered(lost)
    assert attempt.result.turns[0].call is not None
    assert attempt.result.turns[0].call.status == "undelivered"
    assert (await attempt.ask(call())).message.content == "first"
    attempt.session.undelivered(lost)
    assert attempt.result.turns[0].call.status == "delivered"
    assert (await attempt.ask(call())).message.content == "second"


async def test_an_equal_call_after_a_delivery_is_a_new_sample_whatever_its_headers_say() -> None:
    attempt = Attempt(Model("first", "second", "third"))
    await attempt.ask(call())
    assert (await attempt.ask(call(retry_count=2))).message.content == "second"
    assert (await attempt.ask(call())).message.content == "third"
    [event] = attempt.events("retry_after_delivery")
    assert (event["turn"], event["retry_count"]) == (1, 2)


async def test_equal_calls_at_the_same_time_are_samples_of_their_own() -> None:
    attempt = Attempt(Model("first", "second"))
    answers = await asyncio.gather(*(attempt.ask(call()) for _ in range(2)))
    assert {answer.message.content for answer in answers} == {"first", "second"}


@pytest.mark.parametrize(
    "other",
    [
        call("Another."),
        call(TASK, Message(role="user", content="")),
        call(max_tokens=5),
        call(requested_model="small"),
        call(tools=({"type": "function", "function": {"name": "f"}},)),
    ],
)
async def test_a_different_call_does_not_get_a_waiting_reply(other: ModelCall) -> None:
    attempt = Attempt(Model("first", "second"))
    attempt.session.undelivered(await attempt.session.answer(call()))
    assert (await attempt.ask(other)).message.content == "second"


async def test_clients_that_leave_do_not_open_more_calls_than_allowed() -> None:
    release = asyncio.Event()

    async def slowly() -> str:
        await release.wait()
        return "slow"

    attempt = Attempt(Model(slowly))
    clients = []
    for number in range(3 * sessions.MAX_OPEN_CALLS):
        clients.append(asyncio.create_task(attempt.session.answer(call(f"{TASK} {number}"))))
        await settled()
        clients[-1].cancel()
    await settled()
    assert attempt.model.most_open == sessions.MAX_OPEN_CALLS
    release.set()
    await attempt.session.idle()
    assert len(attempt.model.sampling) == sessions.MAX_OPEN_CALLS  # the others are forgotten
    assert (await attempt.ask(call("another"))).message.content == "slow"
    await attempt.session.close()


async def test_a_call_that_waits_takes_the_reply_of_an_equal_one_that_went_away() -> None:
    release = asyncio.Event()

    async def slowly() -> str:
        await release.wait()
        return "slow"

    attempt = Attempt(Model(slowly))
    texts = [f"{TASK} {number}" for number in range(sessions.MAX_OPEN_CALLS)]
    first = [asyncio.create_task(attempt.session.answer(call(text))) for text in texts]
    await settled()
    waiting = asyncio.create_task(attempt.ask(call(texts[0])))
    await settled()
    first[0].cancel()
    await settled()
    release.set()
    await asyncio.gather(waiting, *first[1:])
    assert len(attempt.model.sampling) == sessions.MAX_OPEN_CALLS
    await attempt.session.close()


# --- refusals -----------------------------------------------------------------------------


async def test_three_prompts_in_a_row_that_are_too_long_end_the_attempt() -> None:
    long = ContextLengthExceeded("maximum context length is 10 tokens")
    attempt = Attempt(Model(long, long, "compacted", long, long, long))
    kinds = [await refused(attempt, longer(n)) for n in (0, 1)]
    await attempt.ask(longer(2))
    assert not attempt.session.context_was_refused
    kinds += [await refused(attempt, longer(n)) for n in (3, 4)]
    assert not attempt.session.ended.is_set()
    kinds.append(await refused(attempt, longer(5)))
    assert kinds == ["context_length"] * 5
    assert attempt.session.stop_reason == "context_length"
    assert await refused(attempt, longer(6)) == "stopped"


async def test_a_model_server_that_fails_for_good_ends_the_attempt_at_once() -> None:
    down = ModelError("3 tries failed")
    attempt = Attempt(Model("one", down))
    await attempt.ask(longer(0))
    assert await refused(attempt, longer(1)) == "upstream"
    assert (attempt.session.failure, attempt.session.stop_reason) == (down, None)
    attempt.session.stop("time_limit")
    assert attempt.session.stop_reason is None
    assert await refused(attempt, longer(1)) == "stopped"


def because_of(status: int, failure: TrajectoryFailure) -> TrajectoryFailure:
    failure.__cause__ = type("StatusError", (Exception,), {"status_code": status})()
    return failure


def refusing(status: int) -> TrajectoryFailure:
    return because_of(status, ModelConfigError("bad schema"))


def crashing(status: int = 500) -> TrajectoryFailure:
    return because_of(status, ModelError("3 tries failed"))


async def test_a_call_that_the_server_refuses_is_wrong_only_after_it_has_served_one() -> None:
    attempt = Attempt(Model("one", refusing(400), "works", "two"))
    await attempt.ask(longer(0))
    assert await refused(attempt, longer(1)) == "bad_call"
    assert (await attempt.ask(longer(2))).message.content == "two"
    first = Attempt(Model(refusing(400)))
    assert await refused(first, call()) == "upstream"
    assert isinstance(first.session.failure, ModelConfigError)
    key = Attempt(Model("one", refusing(401)))
    await key.ask(longer(0))
    assert await refused(key, longer(1)) == "upstream"


async def test_the_time_of_a_call_at_which_the_server_fails_is_not_the_programs() -> None:
    async def crash() -> str:
        await asyncio.sleep(0.05)
        raise crashing()

    attempt = Attempt(Model("one", crash, "works", "two"))
    ends = attempt.budget.deadline
    await attempt.ask(longer(0))
    await attempt.ask(longer(1))
    assert attempt.budget.deadline >= ends + 0.05
    assert attempt.result.waited_s == pytest.approx(attempt.budget.deadline - ends)


async def test_a_server_that_refuses_the_first_call_too_is_set_up_wrongly() -> None:
    """As one that has come back without its parser of tool calls."""
    wrong = refusing(400)
    attempt = Attempt(Model("one", wrong))
    await attempt.ask(longer(0))
    assert await refused(attempt, longer(1)) == "upstream"
    assert attempt.session.failure is wrong


async def test_a_server_that_refuses_the_short_cap_of_the_first_call_is_asked_without() -> None:
    """As one whose replies begin with thoughts that the sampling allows more tokens for."""
    attempt = Attempt(Model("one", refusing(400), refusing(400), "works", "two"))
    await attempt.ask(longer(0))
    assert await refused(attempt, longer(1)) == "bad_call"
    assert [sampling.get("max_tokens") for sampling in attempt.model.sampling[2:]] == [16, None]


async def test_a_call_at_which_a_working_server_fails_is_wrong_and_the_program_goes_on() -> None:
    crash = crashing()
    attempt = Attempt(Model("one", crash, "works", crash, "works", "two"))
    await attempt.ask(longer(0))
    assert await refused(attempt, longer(1)) == "bad_call"
    assert attempt.session.failure is None
    assert (await attempt.ask(longer(2))).message.content == "two"
    assert len(attempt.result.turns) == 2, "what only shows that the server works is no turn"


async def test_a_server_that_was_away_for_a_while_is_asked_the_same_again() -> None:
    attempt = Attempt(Model("one", crashing(), "works", "two"))
    await attempt.ask(longer(0))
    assert (await attempt.ask(longer(1))).message.content == "two"


async def test_a_server_that_fails_again_and_answers_nothing_else_is_at_fault() -> None:
    down = crashing()
    attempt = Attempt(Model("one", down, "works", down))
    await attempt.ask(longer(0))
    assert await refused(attempt, longer(1)) == "upstream"
    assert attempt.session.failure is down


@pytest.mark.parametrize("down", [crashing(503), ModelError("a reply without its logprobs")])
async def test_a_server_that_is_overloaded_or_replies_wrongly_is_at_fault(down: ModelError) -> None:
    attempt = Attempt(Model("one", down, "works", down, "works"))
    await attempt.ask(longer(0))
    assert await refused(attempt, longer(1)) == "upstream"
    assert attempt.session.failure is down


async def test_a_program_that_goes_on_with_such_calls_is_stopped_and_scored() -> None:
    class Fragile(Model):
        async def complete(self, messages: Sequence[Message], *asked: Any, **more: Any) -> Reply:
            if len(messages) > 1:
                raise crashing()
            return await super().complete(messages, *asked, **more)

    attempt = Attempt(Fragile())
    await attempt.ask(longer(0))
    kinds = [await refused(attempt, longer(turns)) for turns in (1, 2, 3, 4)]
    assert kinds == ["bad_call"] * 3 + ["stopped"]
    assert (attempt.session.stop_reason, attempt.session.failure) == ("format_errors", None)


async def test_a_cap_that_the_server_refuses_is_left_out_from_then_on() -> None:
    attempt = Attempt(Model(refusing(400), "fine"))
    await attempt.ask(call(max_tokens=65536))
    await attempt.ask(longer(1))
    await attempt.ask(call(TASK, max_tokens=65536))
    assert [sampling.get("max_tokens") for sampling in attempt.model.sampling] == [
        65536,
        *[None] * 3,
    ]


async def test_replies_without_the_cap_that_was_refused_share_what_is_left_of_the_tokens() -> None:
    class Strict(Model):
        async def complete(self, *asked: Any, **more: Any) -> Reply:
            reply = await super().complete(*asked, **more)
            first = len(self.sampling) <= 2
            await settled()
            if first:
                raise refusing(400)
            return reply

    attempt = Attempt(Strict(), max_tokens=25)
    asked = [attempt.ask(call(TASK, max_tokens=1, retry_count=n)) for n in range(2)]
    await asyncio.gather(*asked)
    assert [sampling["max_tokens"] for sampling in attempt.model.sampling] == [1, 1, 24, 1]


async def test_what_a_client_of_the_model_raises_is_a_failure_and_no_score() -> None:
    bug = KeyError("x")
    attempt = Attempt(Model(bug))
    assert await refused(attempt, call()) == "upstream"
    assert attempt.session.failure is bug


async def test_equal_calls_with_equal_replies_are_stuck() -> None:
    attempt = Attempt(Model("again"), max_turns=50)
    for _ in range(STUCK_TURNS):
        await attempt.ask(call())
    assert await refused(attempt, call()) == "stopped"
    assert attempt.session.stop_reason == "stuck"
    varied = Attempt(Model(*"abcdefghijk"), max_turns=50)
    for _ in range(STUCK_TURNS + 1):
        await varied.ask(call())


# --- hostile programs and the end -----------------------------------------------------------


async def test_a_call_or_an_attempt_with_too_much_text_is_too_long_for_any_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "CALL_MAX_BYTES", 5_000)
    monkeypatch.setattr(sessions, "KEPT_MAX_BYTES", 10_000)
    attempt = Attempt(Model())
    assert await refused(attempt, call("x" * 6_000)) == "context_length"
    await attempt.ask(call("a" * 4_000))
    await attempt.ask(call("b" * 4_000))
    assert await refused(attempt, call("c" * 4_000)) == "context_length"
    calls = tuple(ToolCall(id="f", function=FunctionCall(name="f", arguments="")) for _ in range(3))
    many = Message(role="assistant", tool_calls=calls)  # hardly a text, and yet memory
    assert await refused(attempt, call("c", many)) == "context_length"
    assert len(attempt.model.sampling) == 2


async def test_a_program_cannot_ask_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "REQUESTS_AT_LEAST", 6)
    monkeypatch.setattr(sessions, "REQUESTS_PER_TURN", 3)
    attempt = Attempt(Model("one", *(5 * [refusing(422), "works"])), max_turns=2)
    await attempt.ask(longer(0))
    kinds = [await refused(attempt, longer(n)) for n in range(1, 8)]
    assert kinds == ["bad_call"] * 5 + ["stopped"] * 2
    assert attempt.session.stop_reason == "max_turns"


def test_requests_that_are_no_calls_are_counted_by_path_and_bounded() -> None:
    async def count() -> Mapping[str, int]:
        session = Attempt(Model()).session
        for number in range(3 * MAX_OTHER_REQUESTS):
            session.rejected("GET", f"/{number}", 404)
        session.rejected("GET", "/0", 404)
        return session.account.other_requests

    counts = asyncio.run(count())
    assert len(counts) == MAX_OTHER_REQUESTS + 1
    assert (counts["GET /0 404"], counts["others"]) == (2, 2 * MAX_OTHER_REQUESTS)


async def test_after_the_end_no_turn_is_recorded_and_none_delivered() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def slowly() -> str:
        started.set()
        await release.wait()
        return "late"

    attempt = Attempt(Model("one", slowly))
    early = await attempt.session.answer(longer(0))
    late = asyncio.create_task(attempt.session.answer(longer(1)))
    await started.wait()
    attempt.session.seal()
    release.set()
    attempt.session.delivered(early)
    await attempt.session.close()
    with pytest.raises(Refused, match="over"):
        await late
    assert await refused(attempt, longer(2)) == "closed"
    assert [turn.call.status for turn in attempt.result.turns if turn.call] == ["undelivered"]
    assert attempt.session.delivered_replies == 0


SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "times": {"type": ["integer", "null"]}},
    "required": ["command"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("name", "arguments", "valid"),
    [
        ("run", '{"command": "ls"}', True),
        ("run", '{"command": "ls", "times": null}', True),
        ("run", '{"command": "ls", "times": true}', False),
        ("run", '{"command": 7}', False),
        ("run", "{}", False),
        ("run", '{"command": "ls", "colour": "red"}', False),
        ("run", '["ls"]', False),
        ("run", '{"command": "ls"', False),
        ("run", "[" * 100_000, False),
        ("walk", '{"command": "ls"}', False),
        ("loose", '{"anything": 1}', True),
        ("odd", "", True),
    ],
)
def test_calls_are_checked_against_the_tools_that_the_program_sent(
    name: str, arguments: str, valid: bool
) -> None:
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "run", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "loose"}},
        {"type": "function", "function": {"name": "odd", "parameters": {"required": "all"}}},
        {"type": "function"},
    ]
    made = ToolCall(id="a", function=FunctionCall(name=name, arguments=arguments))
    assert fits(made, tools) is valid


async def test_calls_in_delivered_replies_are_counted_once() -> None:
    made = [
        ToolCall(id=name, function=FunctionCall(name=name, arguments="{}")) for name in ("f", "g")
    ]
    attempt = Attempt(Model(Message(role="assistant", tool_calls=tuple(made))))
    tools = ({"type": "function", "function": {"name": "f"}},)
    answer = await attempt.session.answer(call(tools=tools))
    attempt.session.undelivered(answer)
    assert attempt.result.tool_calls.attempted == 0
    await attempt.ask(call(tools=tools))
    counts = attempt.result.tool_calls
    assert (counts.attempted, counts.schema_valid, counts.ok) == (2, 1, 0)


async def test_calls_in_a_reply_that_comes_back_are_counted_though_its_delivery_failed() -> None:
    made = ToolCall(id="f", function=FunctionCall(name="f", arguments="{}"))
    said = Message(role="assistant", tool_calls=(made,))
    attempt = Attempt(Model(said, "Done."))
    attempt.session.undelivered(await attempt.session.answer(call()))
    await attempt.ask(call(TASK, said, Message(role="tool", content="a", tool_call_id="f")))
    assert attempt.result.tool_calls.attempted == 1
    assert (await attempt.ask(call())).turn == 2  # and an equal call is a new sample


async def test_a_call_of_much_text_or_of_many_short_messages_calls_or_tools_is_long() -> None:
    def calls(arguments: str, count: int = 1) -> Message:
        made = ToolCall(id="f", function=FunctionCall(name="f", arguments=arguments))
        return Message(role="assistant", tool_calls=(made,) * count)

    tool = {"type": "function", "function": {"name": "f", "description": 1000 * "x"}}
    much = 600_000 * "x"
    long = (
        *(longer(300), call(TASK, calls("{}", 600)), call(TASK, calls(much))),
        *(call(TASK, Message(role="assistant", reasoning=much)), call(tools=(tool,) * 600)),
    )
    assert [(await measured(each)).is_long for each in long] == [True] * 5
    short = longer(100), call(TASK, calls("{}", 400)), call(tools=(tool,) * 100)
    assert [(await measured(each)).is_long for each in short] == [False] * 3
