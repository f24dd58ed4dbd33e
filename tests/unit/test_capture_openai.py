"""OpenAI's SDK, unchanged, against the endpoint of a program's calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from scripted_session import KEY, ScriptedSession, reply, serving

from hermes_queue.agent.capture.bounds import Bounds
from hermes_queue.agent.capture.calls import Answer, ModelCall, Refused

if TYPE_CHECKING:
    import openai

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the SDK."""
CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
RESPONSES: Any = {"model": "m", "input": "x"}


async def call_bash(call: ModelCall) -> Answer:
    return reply("Yes.", arguments='{"command": "ls -l"}', reasoning="Hmm.")


@asynccontextmanager
async def client(
    session: ScriptedSession, bounds: Bounds | None = None, max_retries: int = 0
) -> AsyncIterator[openai.AsyncOpenAI]:
    import openai

    async with serving(session, bounds) as url:
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=max_retries
        ) as made:
            yield made


async def test_answers_whole_and_streamed_reach_the_sdk() -> None:
    session = ScriptedSession(call_bash)
    async with client(session) as sdk:
        whole = await sdk.chat.completions.create(**CHAT)
        async with sdk.chat.completions.stream(**CHAT) as stream:
            streamed: Any = await stream.get_final_completion()
        async with sdk.responses.stream(**RESPONSES) as events:
            response = await events.get_final_response()
    for answer in (whole, streamed):
        message = answer.choices[0].message
        assert message.content == "Yes."
        assert json.loads(message.tool_calls[0].function.arguments) == {"command": "ls -l"}
    call: Any = response.output[-1]
    assert (response.output_text, call.name) == ("Yes.", "bash")
    assert session.told == 3 * [("delivered", 0)]


async def test_a_refusal_has_the_sdk_s_class_and_is_not_asked_again() -> None:
    import openai

    async def script(call: ModelCall) -> Answer:
        raise Refused("upstream" if call.streamed else "stopped", "no")

    session = ScriptedSession(script)
    async with client(session, max_retries=3) as sdk:
        with pytest.raises(openai.AuthenticationError, match="no"):
            await sdk.responses.create(**RESPONSES)
        with pytest.raises(openai.InternalServerError, match="no"):
            await sdk.chat.completions.create(**CHAT, stream=True)
    assert len(session.calls) == 2


async def test_the_sdk_asks_again_when_the_connection_ends_without_its_answer() -> None:
    waited = asyncio.Event()

    async def script(call: ModelCall) -> Answer:
        if not call.retry_count:
            await asyncio.sleep(0.1)  # the first sign of life is sent
            raise Refused("upstream", "too late for a status")
        waited.set()
        return await call_bash(call)

    session = ScriptedSession(script)
    async with client(session, Bounds(first_sign_s=0.02), max_retries=1) as sdk:
        await sdk.chat.completions.create(**CHAT)
    assert waited.is_set()
    assert [call.retry_count for call in session.calls] == [0, 1]
