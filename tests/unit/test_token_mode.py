"""Token mode: what was sampled is never rendered again."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from token_stub import END, OTHER_END, TokenStub, encode, template

from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.agent.tokens.merge import merge_with_breaks
from hermes_queue.errors import ContextLengthExceeded, ModelConfigError, ModelError
from hermes_queue.models import AgentSpec, Message, Turn
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import load_tool

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

USER = Message(role="user", content="list src")
TOOLS = [load_tool("terminal").schema()]
# The template would write the arguments with blanks, so message mode would break the prefix here.
CALL = '<tool_call>{"name":"terminal","arguments":{"command":"ls"}}</tool_call>'
SERVERS = ["vllm", "sglang"]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)


@asynccontextmanager
async def talk(*replies: str, kind: str = "vllm", **options):
    async with TokenStub(list(replies), kind=kind, **options) as stub:
        params = {"mode": "tokens", "server": kind, "parser": "hermes"}
        spec = AgentSpec(kind="openai", model="m", base_url=stub.url, params=params)

        async def gold():
            raise AssertionError("only the oracle asks")

        yield (
            stub,
            make_chat(spec, AgentScript(gold), ModelSettings(max_retries=1, trusted_urls=stub.url)),
        )
        await close_clients()


async def turn(chat, messages, after=None, **sampling):
    """The reply to `messages`, which continues that of `after`."""
    anchor = after and after.anchor
    reply = await chat.complete(messages, TOOLS, sampling, time.monotonic() + 20, anchor=anchor)
    messages.append(reply.message)
    messages += [
        Message(role="tool", content=f"result {n}", tool_call_id=call.id)
        for n, call in enumerate(reply.message.tool_calls)
    ]
    return reply


async def several(chat, messages, count):
    replies = [await turn(chat, messages)]
    while len(replies) < count:
        replies.append(await turn(chat, messages, replies[-1]))
    return replies


@pytest.mark.parametrize("kind", SERVERS)
async def test_turns_extend_each_other_token_by_token(kind):
    async with talk(CALL, f"Again. {CALL}{CALL}", "Done.", kind=kind) as (_, chat):
        messages = [USER]
        turns = [reply.turn for reply in await several(chat, messages, 3)]
    [sequence], _ = merge_with_breaks(turns)
    text = "".join(chr(i) for i in sequence.ids if i != END)
    assert text.count(CALL) == 3
    assert text.count("result 0") == 2
    assert sum(sequence.loss_mask) == sum(len(t.completion_ids) for t in turns)
    assert [m.content for m in messages if m.role == "assistant"] == [None, "Again.", "Done."]


@pytest.mark.parametrize("kind", SERVERS)
async def test_what_follows_a_completion_is_what_the_template_writes_there(kind):
    async with talk(CALL, "Done.", kind=kind) as (_, chat):
        messages = [USER]
        first, second = [reply.turn for reply in await several(chat, messages, 2)]
    between = second.prompt_ids[len(first.prompt_ids) + len(first.completion_ids) :]
    assert list(between) == encode("\ntool:result 0<|end|>\nassistant:")


async def test_a_reply_that_was_cut_off_is_closed_in_the_prompt_and_not_in_the_completion():
    async with talk(CALL, CALL + " and...", "Done.") as (_, chat):
        messages = [USER]
        turns = [reply.turn for reply in await several(chat, messages, 3)]
    assert turns[1].finish_reason == "length"
    [sequence], _ = merge_with_breaks(turns)
    end = len(turns[1].prompt_ids) + len(turns[1].completion_ids)
    assert (sequence.ids[end], sequence.loss_mask[end]) == (END, 0)


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_first_reply_that_was_cut_off_is_closed_as_the_template_does(kind):
    async with talk(CALL + " and...", "Done.", kind=kind) as (_, chat):
        messages = [USER]
        replies = await several(chat, messages, 2)
    first = replies[0].turn
    assert first.finish_reason == "length"
    assert replies[1].events == ()
    [sequence], _ = merge_with_breaks([reply.turn for reply in replies])
    end = len(first.prompt_ids) + len(first.completion_ids)
    assert (sequence.ids[end], sequence.loss_mask[end]) == (END, 0)


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_reply_that_ends_in_another_token_is_closed_as_the_template_does(kind):
    async with talk(CALL + chr(OTHER_END), CALL, "Done.", kind=kind) as (_, chat):
        messages = [USER]
        replies = await several(chat, messages, 3)
    assert [r.events for r in replies] == [(), (), ()]
    assert len(replies[0].message.tool_calls) == 1
    assert replies[0].message.content is None
    first = replies[0].turn
    assert first.completion_ids[-1] == OTHER_END
    [sequence], _ = merge_with_breaks([r.turn for r in replies])
    end = len(first.prompt_ids) + len(first.completion_ids)
    assert (sequence.ids[end], sequence.loss_mask[end]) == (END, 0)


async def test_a_reply_that_was_cut_off_at_a_token_of_the_templates_ending_is_still_closed():
    def spaced(messages, tools, reply):
        return template(messages, tools, reply).replace("<|end|>\n", "<|end|>.")

    async with talk(CALL + "...", "Done.") as (stub, chat):
        stub.template = spaced
        messages = [USER]
        first, second = [reply.turn for reply in await several(chat, messages, 2)]
    between = second.prompt_ids[len(first.prompt_ids) + len(first.completion_ids) :]
    assert list(between[:2]) == [END, ord(".")]


async def test_a_history_that_was_rewritten_is_rendered_anew_and_begins_a_sequence():
    async with talk(CALL, "Done.") as (_, chat):
        messages = [USER]
        first = await turn(chat, messages)
        messages[-1] = messages[-1].model_copy(update={"content": "[cut]"})
        messages[0] = messages[0].model_copy(update={"content": "list"})
        second = await turn(chat, messages, first)
    assert [e["reason"] for e in second.events if e["event"] == "rerendered"] == [
        "the history was rewritten"
    ]
    sequences, breaks = merge_with_breaks([first.turn, second.turn])
    assert (len(sequences), len(breaks)) == (2, 1)


async def test_a_template_that_changes_earlier_turns_is_rendered_anew():
    def forgetful(messages, tools, reply):
        return template(messages[-1:] if len(messages) > 2 else messages, tools, reply)

    async with talk(CALL, "Done.") as (stub, chat):
        stub.template = forgetful
        messages = [USER]
        second = (await several(chat, messages, 2))[-1]
    assert second.events[-1]["reason"] == "the template has no continuation"


@pytest.mark.parametrize("kind", SERVERS)
async def test_calls_at_the_same_time_continue_the_same_reply(kind):
    async with talk(CALL, "One.", f"Two. {CALL}", kind=kind) as (_, chat):
        messages = [USER]
        first = await turn(chat, messages)
        replies = await asyncio.gather(*(turn(chat, [*messages], first) for _ in range(2)))
    held = (*first.turn.prompt_ids, *first.turn.completion_ids)
    for reply in replies:
        assert reply.events == ()
        assert reply.turn.prompt_ids[: len(held)] == held
    assert {reply.message.content for reply in replies} == {"One.", "Two."}


@pytest.mark.parametrize("kept", [True, False], ids=["ending-kept", "ending-found"])
@pytest.mark.parametrize("cut", ["", "..."])
async def test_another_client_continues_a_recorded_turn(cut, kept):
    async with talk(f"{CALL} Go on{cut}", "Done.") as (_, chat):
        messages = [USER]
        expected = [reply.turn for reply in await several(chat, messages, 2)]
    async with talk(f"{CALL} Go on{cut}", CALL) as (stub, chat):
        messages = [USER]
        first = await turn(chat, messages)
        record = Turn.model_validate_json(first.turn.model_dump_json())
        anchor = Anchor.of(
            record,
            [Message.model_validate_json(m.model_dump_json()) for m in messages[:2]],
            ended_by_token=first.anchor.ended_by_token if kept else None,
        )
        assert anchor == first.anchor
        spec = AgentSpec(
            kind="openai", model="m", base_url=stub.url, params={"mode": "tokens", "server": "vllm"}
        )
        chat = make_chat(spec, AgentScript(None), ModelSettings(trusted_urls=stub.url))
        second = await turn(chat, messages, replace(first, anchor=anchor))
        await close_clients()
    assert second.turn.prompt_ids == expected[1].prompt_ids
    assert second.events == ()
    ids = [call.id for m in messages for call in m.tool_calls]
    assert len(set(ids)) == len(ids)


async def test_the_length_asked_for_is_what_the_context_leaves():
    async with talk(CALL, max_model_tokens=2000) as (stub, chat):
        reply = await turn(chat, [USER], max_tokens=5000)
        asked = dict(stub.requests)["/v1/completions"]["max_tokens"]
    assert asked == 2000 - len(reply.turn.prompt_ids)


async def test_a_conversation_that_fills_the_context_is_an_outcome():
    async with talk(max_model_tokens=10) as (_, chat):
        with pytest.raises(ContextLengthExceeded, match="context length 10"):
            await turn(chat, [USER])


@pytest.mark.parametrize("kind", SERVERS)
async def test_missing_logprobs_are_a_fault_of_the_server(kind):
    def cut(answer):
        where = answer.get("meta_info") or answer["choices"][0]["logprobs"]
        name = next(name for name in where if name.endswith("_logprobs"))
        where[name] = [None, *where[name][1:]] if kind == "vllm" else [[None, 5, None]]

    async with talk(CALL, CALL, kind=kind) as (stub, chat):
        stub.break_reply = cut
        with pytest.raises(ModelError, match="logprob"):
            await turn(chat, [USER])


async def test_the_weights_that_a_turn_was_sampled_with_are_recorded():
    async with talk(CALL, kind="sglang") as (_, chat):
        assert (await turn(chat, [USER])).turn.policy_version == "7"


async def test_a_server_that_takes_no_ids_is_a_wrong_setting():
    spec = AgentSpec(
        kind="openai", model="m", base_url="http://x", params={"mode": "tokens", "server": "ollama"}
    )
    with pytest.raises(ModelConfigError, match="known: sglang, vllm"):
        make_chat(spec, AgentScript(lambda: None), ModelSettings(trusted_urls="http://x"))
