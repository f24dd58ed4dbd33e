"""The SDKs of OpenAI and Anthropic, unchanged, against the endpoint of a program's calls.

Run by `make test-agents`: their import alone takes three seconds. What OpenAI's does without
threads is also in `tests/unit/test_capture_openai.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anthropic
import openai
import pytest
from scripted_session import KEY, ScriptedSession, reply, serving

from hermes_queue.agent.capture.bounds import Bounds
from hermes_queue.agent.capture.calls import Answer, ModelCall, Refused

ARGUMENTS = '{"command": "ls -l"}'
ASKED: Any = [{"role": "user", "content": "x"}]
QUICK = Bounds(first_sign_s=0.1, signs_s=0.1)


async def call_bash(call: ModelCall) -> Answer:
    return reply("Yes.", arguments=ARGUMENTS, reasoning="Hmm.")


async def slowly(call: ModelCall) -> Answer:
    await asyncio.sleep(1.5)
    return await call_bash(call)


@asynccontextmanager
async def clients(
    session: ScriptedSession,
    *,
    bounds: Bounds | None = None,
    asynchronous: bool = True,
    **more: Any,
) -> AsyncIterator[tuple[Any, Any]]:
    """A client of each SDK, that does not ask again."""
    more = {"api_key": KEY, "max_retries": 0, **more}
    async with serving(session, bounds) as url:
        if asynchronous:
            async with (
                openai.AsyncOpenAI(base_url=f"{url}/v1", **more) as first,
                anthropic.AsyncAnthropic(base_url=url, **more) as second,
            ):
                yield first, second
            return
        with (
            openai.OpenAI(base_url=f"{url}/v1", **more) as third,
            anthropic.Anthropic(base_url=url, **more) as fourth,
        ):
            yield third, fourth


def of_chat(answer: Any) -> tuple[Any, ...]:
    message = answer.choices[0].message
    [call] = message.tool_calls
    return message.content, call.function.name, json.loads(call.function.arguments)


def of_responses(answer: Any) -> tuple[Any, ...]:
    call = answer.output[-1]
    return answer.output_text, call.name, json.loads(call.arguments)


def of_messages(answer: Any) -> tuple[Any, ...]:
    *_, text, call = answer.content
    return text.text, call.name, call.input


CHAT = partial(dict, model="m", messages=ASKED)
RESPONSES = partial(dict, model="m", input="x")
MESSAGES = partial(dict, model="m", messages=ASKED, max_tokens=9)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_whole_answers_reach_the_sdks(asynchronous: bool) -> None:
    session = ScriptedSession(call_bash)

    async def done(ask: Callable[[], Any]) -> Any:
        return await (ask() if asynchronous else asyncio.to_thread(ask))

    async with clients(session, asynchronous=asynchronous) as (first, second):
        found = [
            of_chat(await done(partial(first.chat.completions.create, **CHAT()))),
            of_responses(await done(partial(first.responses.create, **RESPONSES()))),
            of_messages(await done(partial(second.messages.create, **MESSAGES()))),
        ]
        counted = await done(partial(second.messages.count_tokens, model="m", messages=ASKED))
    assert found == 3 * [("Yes.", "bash", {"command": "ls -l"})]
    assert counted.input_tokens == 7
    assert session.told == 3 * [("delivered", 0)]


async def test_streams_reach_the_sdks() -> None:
    session = ScriptedSession(call_bash)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    async with clients(session) as (first, second):
        async with first.chat.completions.stream(
            **CHAT(), stream_options={"include_usage": True}
        ) as stream:
            chat = await stream.get_final_completion()
        async with first.responses.stream(**RESPONSES()) as stream:
            responses = await stream.get_final_response()
        async with second.messages.stream(**MESSAGES(), thinking=thinking) as stream:
            messages = await stream.get_final_message()
    found = [of_chat(chat), of_responses(responses), of_messages(messages)]
    assert found == 3 * [("Yes.", "bash", {"command": "ls -l"})]
    assert (chat.usage.total_tokens, responses.usage.total_tokens) == (16, 16)
    assert messages.usage.input_tokens + messages.usage.cache_read_input_tokens == 11
    assert (messages.content[0].thinking, responses.output[0].content[0].text) == ("Hmm.", "Hmm.")


async def test_streams_reach_the_sdks_without_asyncio() -> None:
    async with clients(ScriptedSession(call_bash), asynchronous=False) as (first, second):

        def read() -> list[Any]:
            with first.chat.completions.stream(**CHAT()) as chat:
                whole = of_chat(chat.get_final_completion())
            with second.messages.stream(**MESSAGES()) as messages:
                return [whole, of_messages(messages.get_final_message())]

        assert await asyncio.to_thread(read) == 2 * [("Yes.", "bash", {"command": "ls -l"})]


FAULTS = [
    ("stopped", "AuthenticationError"),
    ("bad_call", "BadRequestError"),
    ("context_length", "BadRequestError"),
    ("upstream", "InternalServerError"),
]


@pytest.mark.parametrize(("kind", "error"), FAULTS)
async def test_refusals_have_each_sdk_s_class_and_are_not_asked_again(
    kind: Any, error: str
) -> None:
    async def script(call: ModelCall) -> Answer:
        raise Refused(kind, "no")

    session = ScriptedSession(script)
    async with clients(session, max_retries=3) as (first, second):
        with pytest.raises(getattr(openai, error), match="no"):
            await first.chat.completions.create(**CHAT(), stream=True)
        with pytest.raises(getattr(openai, error), match="no"):
            await first.responses.create(**RESPONSES())
        overloaded = getattr(anthropic, error)
        with pytest.raises(overloaded, match="no"):
            await second.messages.create(**MESSAGES(), stream=True)
    assert len(session.calls) == 3


async def test_an_sdk_waits_longer_than_its_timeout_while_there_are_signs_of_life() -> None:
    session = ScriptedSession(slowly)
    async with clients(session, bounds=QUICK, timeout=1.0) as (first, second):
        found = await asyncio.gather(
            first.chat.completions.create(**CHAT()),
            second.messages.create(**MESSAGES()),
            anext(stream := await first.chat.completions.create(**CHAT(), stream=True)),
        )
        await stream.close()
    assert of_chat(found[0]) == of_messages(found[1])
    assert found[2].choices[0].delta.role == "assistant"


async def test_an_sdk_without_signs_of_life_gives_up_and_its_wait_ends() -> None:
    session = ScriptedSession(slowly)
    async with clients(session, timeout=0.2) as (first, _):
        with pytest.raises(openai.APITimeoutError):
            await first.chat.completions.create(**CHAT())
        await session.until_told("cancelled")


async def test_an_sdk_asks_again_when_the_connection_ends_without_its_answer() -> None:
    async def script(call: ModelCall) -> Answer:
        if not call.retry_count:
            await asyncio.sleep(0.3)
            raise Refused("upstream", "too late for a status")
        return await call_bash(call)

    session = ScriptedSession(script)
    async with clients(session, bounds=QUICK, max_retries=1) as (first, _):
        assert of_chat(await first.chat.completions.create(**CHAT()))[0] == "Yes."
    assert [call.retry_count for call in session.calls] == [0, 1]
