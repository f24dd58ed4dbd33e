"""Programs that write replies in their own way: sampled tokens are reused, and trainable once.

Random programs talk to a stub that tokenizes, through the real client; their trees become records
as in a worker.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import asynccontextmanager

import pytest
from random_replies import random_replies, random_text
from records import make_job
from token_stub import TokenStub

from envs.base import Verdict
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.capture.calls import ModelCall
from hermes_queue.agent.capture.tree import ReplyTree
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.bodies import codec
from hermes_queue.models import AgentSpec, Message, ScoredTrajectory
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import load_tool
from workers.draft import Draft
from workers.record import encoded, record_of

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

TOOLS = (load_tool("terminal").schema(),)
TASK = "Find the bug."
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 40))]


class Caller:
    """The model calls of one attempt, as a session makes them."""

    def __init__(self, chat, draft, history):
        self.chat = chat
        self.draft = draft
        self.tree = ReplyTree(draft.agent, TASK, history=history)

    async def ask(self, messages, *, tools=TOOLS, deliver=True):
        call = ModelCall("chat", "/v1/chat/completions", tuple(messages), tools=tools)
        place = self.tree.place(call)
        until = time.monotonic() + 60
        anchor = {"anchor": place.anchor} if place.anchor else {}
        reply = await self.chat.complete(place.messages, tools, {}, until, **anchor)
        turn = self.tree.add(place, call, reply)
        if deliver:
            self.tree.deliver(turn)
        return reply.message


@asynccontextmanager
async def calling(rng, *, mode="tokens", history="sampled", replies=300):
    texts = [
        rng.choice(["", f"<think>{random_text(rng)}</think>"]) + text
        for _ in range(replies)
        for text in random_replies(rng)
    ]
    params = {"server": "vllm", "parser": "hermes", "logprobs_mode": "raw_logprobs"}
    params |= {"mode": "tokens"} if mode == "tokens" else {"token_ids": True}
    async with TokenStub(texts, max_model_tokens=10**6) as stub:
        agent = AgentSpec(
            kind="openai", model="m", base_url=stub.url, params={**params, "probe_tools": False}
        )
        draft = Draft(make_job(agent=agent), attempt=1, epoch=1)
        draft.verdict = Verdict(score=1.0)
        settings = ModelSettings(max_retries=0, trusted_urls=stub.url)
        yield Caller(make_chat(agent, AgentScript(None), settings), draft, history)
    await close_clients()


def rewritten(rng, message, number):
    """A reply as some program sends it back: the same in meaning."""
    calls = [
        call.model_copy(
            update={
                "id": rng.choice([call.id, f"own-{number}-{n}"]),
                "function": call.function.model_copy(
                    update={"arguments": other_json(rng, call.function.arguments)}
                ),
            }
        )
        for n, call in enumerate(message.tool_calls)
    ]
    content = rng.choice([message.content or "", message.content or None, message.content])
    update = {"tool_calls": tuple(calls), "content": content}
    return message.model_copy(update=update | ({"reasoning": None} if rng.random() < 0.7 else {}))


def other_json(rng, arguments):
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    blanks = rng.choice([(",", ":"), (", ", ": "), (" ,", " :  ")])
    return json.dumps(value, separators=blanks, ensure_ascii=rng.random() < 0.5)


async def converse(rng, caller, opening, turns, edits=0.0):
    """One conversation of a program, which keeps its own copy of what was said."""
    messages = list(opening)
    for number in range(turns):
        while rng.random() < 0.2:  # it gave up waiting, or asked for another sample
            await caller.ask(messages, deliver=rng.random() < 0.5)
        reply = rewritten(rng, await caller.ask(messages), number)
        messages.append(reply)
        messages += [
            Message(role="tool", content=random_text(rng), tool_call_id=call.id)
            for call in reply.tool_calls
        ] or [Message(role="user", content="Go on.")]
        if rng.random() < edits:
            at = rng.randrange(len(opening), len(messages))
            messages[at] = messages[at].model_copy(update={"content": f"[cut {number}]"})
        if rng.random() < edits and len(messages) > 5:  # compaction
            summary = Message(role="user", content=f"So far: {number} turns.")
            messages = [*opening, summary, *messages[-2:]] if rng.random() < 0.5 else messages
    return messages


async def play(rng, caller, edits):
    task = [Message(role="system", content="s"), Message(role="user", content=f"Do: {TASK}")]
    helper = [Message(role="user", content="Look at the files.")]
    title = [Message(role="user", content=f"A title for: {TASK}")]
    await asyncio.gather(
        converse(rng, caller, task, 5, edits),
        converse(rng, caller, helper, 3, edits),
        converse(rng, caller, helper, 2),
        caller.ask(title, tools=()),
    )


def finished(caller) -> ScoredTrajectory:
    caller.draft.agent.messages = caller.tree.main_path()
    return record_of(caller.draft, owner="w", host="h")


def assert_each_is_trainable_once(record):
    delivered = [turn.call.status == "delivered" for turn in record.turns]
    marks = [0] * len(record.turns)
    for sequence in record.sequences:
        for index in sequence.turns:
            turn = record.turns[index]
            begin = len(turn.prompt_ids)
            end = begin + len(turn.completion_ids)
            assert sequence.ids[:end] == (*turn.prompt_ids, *turn.completion_ids)
            trained = set(sequence.loss_mask[begin:end])
            assert len(trained) == 1
            marks[index] += trained.pop()
    assert marks == [int(each) for each in delivered]


@pytest.mark.parametrize("history", ["sampled", "agent"])
@pytest.mark.parametrize("mode", ["tokens", "messages"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_record_of_random_conversations_keeps_every_invariant(seed, mode, history):
    rng = random.Random(seed)
    async with calling(rng, mode=mode, history=history) as caller:
        await play(rng, caller, edits=0.3)
    record, body = encoded(finished(caller), 1 << 26)
    assert record.status == "completed"
    assert token_violations(record) == []
    assert_each_is_trainable_once(record)
    assert record.schema_version == 2
    assert codec.decode_record(body) == record
    assert ScoredTrajectory.model_validate_json(record.to_json()) == record


@pytest.mark.parametrize("seed", SEEDS)
async def test_without_edits_each_prompt_begins_with_the_tokens_that_were_sampled(seed):
    rng = random.Random(seed)
    async with calling(rng) as caller:
        await play(rng, caller, edits=0.0)
    record = finished(caller)
    assert not [e for e in record.events if e["event"] in ("rerendered", "sequence_break")]
    for turn in record.turns:
        if turn.parent is not None:
            last = record.turns[turn.parent]
            held = (*last.prompt_ids, *last.completion_ids)
            assert turn.prompt_ids[: len(held)] == held


async def test_the_same_conversations_break_in_message_mode():
    breaks = 0
    for seed in range(3):
        rng = random.Random(seed)
        async with calling(rng, mode="messages", history="agent") as caller:
            await play(rng, caller, edits=0.0)
        breaks += sum(e["event"] == "sequence_break" for e in finished(caller).events)
    assert breaks > 0
