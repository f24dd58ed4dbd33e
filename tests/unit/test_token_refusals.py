"""In RL mode a reply whose tokens are not whole is refused, never completed by us."""

from __future__ import annotations

import time

import pytest
from token_stub import TokenStub

from hermes_queue import extensions
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.errors import ModelConfigError, ModelError
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

MODES = {"tokens": {"mode": "tokens"}, "messages": {"token_ids": True}}


async def gold():
    raise AssertionError("only the oracle asks")


async def ask(kind, mode, break_reply):
    async with TokenStub(["hello"] * 3, kind=kind) as stub:
        stub.break_reply = break_reply
        params = {"server": kind, **MODES[mode], "logprobs_mode": "raw_logprobs"}
        spec = AgentSpec(kind="openai", model="m", base_url=stub.url, params=params)
        chat = make_chat(
            spec, AgentScript(gold), ModelSettings(max_retries=0, trusted_urls=stub.url)
        )
        try:
            messages = [Message(role="user", content="hi")]
            return await chat.complete(messages, [], {}, time.monotonic() + 60)
        finally:
            await close_clients()


def logprobs_of(answer):
    """The list of logprobs in whichever form."""
    if "meta_info" in answer:
        return answer["meta_info"]["output_token_logprobs"]
    logprobs = answer["choices"][0]["logprobs"]
    return logprobs.get("content") or logprobs["token_logprobs"]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("prompt_token_ids",), "sends no ids of the prompt,"),
        (("token_ids", "response_token_ids"), "sends no ids of the completion, no logprobs,"),
        (("logprobs",), "sends no logprobs,"),
    ],
)
async def test_a_chat_reply_without_its_tokens_is_refused_with_what_to_do(kind, names, expected):
    def drop(answer):
        for name in names:
            answer.pop(name, None)
            answer["choices"][0].pop(name, None)

    with pytest.raises(ModelConfigError, match=expected) as raised:
        await ask(kind, "messages", drop)
    assert '"return_token_ids": true' in str(raised.value)
    assert f"registered are {', '.join(extensions.known('token_server'))}" in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "mode"), [("vllm", "tokens"), ("vllm", "messages"), ("sglang", "messages")]
)
async def test_fewer_logprobs_than_tokens_are_a_fault_of_the_server(kind, mode):
    with pytest.raises(ModelError, match="6 token ids but 5 logprobs"):
        await ask(kind, mode, lambda answer: logprobs_of(answer).pop())


@pytest.mark.parametrize(
    ("kind", "mode"), [("vllm", "tokens"), ("vllm", "messages"), ("sglang", "messages")]
)
async def test_logits_in_place_of_logprobs_are_a_fault_of_the_server(kind, mode):
    def heighten(answer):
        found = logprobs_of(answer)
        found[0] = {"logprob": 3.5} if mode == "messages" else 3.5

    with pytest.raises(ModelError, match="server return logits"):
        await ask(kind, mode, heighten)


async def test_sampled_tokens_that_return_neither_text_nor_call_leave_an_event():
    def lose(answer):
        answer["choices"][0]["message"] |= {"content": None, "tool_calls": []}

    reply = await ask("sglang", "messages", lose)
    assert reply.events == ({"event": "reply_lost", "tokens": len("hello") + 1},)
    assert (await ask("sglang", "messages", lambda _: None)).events == ()
