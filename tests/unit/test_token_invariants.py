"""The twelve invariants of token records: random episodes, both modes, both servers' forms.

An episode is sampled from a stub that tokenizes, through the real client, and becomes a record as
in a worker. That the server finds the logprobs again (the tenth) is shown on real servers.
"""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections import Counter

import pytest
from random_replies import random_replies, random_text
from records import make_job
from token_stub import END, TokenStub, template

from envs.base import Verdict
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.agent.tokens.merge import merge_with_breaks
from hermes_queue.bodies import codec
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import load_tool
from workers.draft import Draft
from workers.record import record_of

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

TOOLS = [load_tool("terminal").schema()]
SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(5, 16))]
MODES = ["tokens", "messages"]
SERVERS = ["vllm", "sglang"]


def forgetful(messages, tools, reply):
    """A template that leaves out what the assistant said before the last user message."""
    users = [n for n, message in enumerate(messages) if message["role"] == "user"]
    last = users[-1] if users else 0
    kept = [
        m if n >= last or m["role"] != "assistant" else {**m, "content": ""}
        for n, m in enumerate(messages)
    ]
    return template(kept, tools, reply)


async def sample_episode(rng, kind, mode):
    """The draft of a trajectory whose history is sometimes rewritten on the way."""
    replies = list(random_replies(rng))
    params = {"server": kind, "logprobs_mode": "raw_logprobs"}
    params |= {"mode": "tokens"} if mode == "tokens" else {"token_ids": True}
    async with TokenStub(list(replies), kind=kind, max_model_tokens=10**6) as stub:
        stub.template = rng.choice([template, template, forgetful])
        agent = AgentSpec(
            kind="openai", model="m", base_url=stub.url, params={**params, "probe_tools": False}
        )
        draft = Draft(make_job(agent=agent), attempt=1, epoch=1)
        draft.verdict = Verdict(score=1.0)
        chat = make_chat(
            agent, AgentScript(gold), ModelSettings(max_retries=0, trusted_urls=stub.url)
        )
        messages = [Message(role="user", content=random_text(rng) or ".")]
        anchor = None
        for _ in replies:
            until = time.monotonic() + 60
            reply = await chat.complete(messages, TOOLS, {}, until, anchor=anchor)
            anchor = reply.anchor
            number = len(draft.agent.turns)
            draft.agent.events += [{"turn": number, **event} for event in reply.events]
            draft.agent.turns.append(reply.turn)
            messages += [reply.message, *answers(rng, reply.message)]
            if rng.random() < 0.15:
                first = rng.choice(messages)
                messages[messages.index(first)] = first.model_copy(update={"content": "[cut]"})
        draft.agent.messages = messages
    await close_clients()
    return draft


async def gold():
    raise AssertionError("only the oracle asks")


def answers(rng, message):
    if not message.tool_calls:
        return [Message(role="user", content="Go on.")]
    return [
        Message(role="tool", content=random_text(rng), tool_call_id=call.id)
        for call in message.tool_calls
    ]


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_record_of_a_random_episode_keeps_every_invariant(seed, mode, kind):
    draft = await sample_episode(random.Random(seed), kind, mode)
    record = record_of(draft, owner="w", host="h")
    assert token_violations(record) == []
    assert merge_with_breaks(record.turns)[0] == record.sequences
    sampled = [i for turn in record.turns for i in turn.completion_ids]
    trainable = [i for s in record.sequences for i, m in zip(s.ids, s.loss_mask, strict=True) if m]
    assert trainable == sampled
    assert trainable.count(END) == sum(turn.finish_reason == "stop" for turn in record.turns)
    again = codec.decode_record(codec.encode_record(record))
    assert (again.turns, again.sequences) == (record.turns, record.sequences)
    for before, after in zip(record.sequences, again.sequences, strict=True):
        form = f"{len(before.logprobs)}d"
        assert struct.pack(form, *before.logprobs) == struct.pack(form, *after.logprobs)


async def test_random_episodes_break_in_message_mode_and_only_where_rewritten_in_token_mode():
    reasons = {}
    for mode in MODES:
        drafts = [await sample_episode(random.Random(seed), "vllm", mode) for seed in range(10)]
        events = [event for d in drafts for event in record_of(d, owner="w", host="h").events]
        found = [event["reason"] for event in events if event["event"] == "sequence_break"]
        reasons[mode] = Counter(found)
    assert set(reasons["tokens"]) == {"history_rewritten"}
    assert set(reasons["messages"]) == {
        "arguments_rewritten",
        "earlier_turns",
        "reply",
        "reply_cut_off",
    }
    assert reasons["messages"].total() > reasons["tokens"].total()


# --- the check itself can fail ------------------------------------------------------------


_record = None


async def sample_record():
    global _record
    seeds = itertools.count()
    while _record is None:  # once for all tests of this process
        draft = await sample_episode(random.Random(next(seeds)), "vllm", "messages")
        record = record_of(draft, owner="w", host="h")
        if len(record.sequences) > 1 and len(record.turns) > len(record.sequences):
            _record = record
    return _record


def with_sequence(record, **update):
    sequence, *others = record.sequences
    changed = sequence.model_copy(update={name: f(sequence) for name, f in update.items()})
    return record.model_copy(update={"sequences": (changed, *others)})


def first_sampled(sequence):
    return sequence.loss_mask.index(1)


def replaced(values, index, value):
    return (*values[:index], value, *values[index + 1 :])


FORGERIES = {
    "differ in length": lambda r: with_sequence(r, loss_mask=lambda s: s.loss_mask[:-1]),
    "other than 0 and 1": lambda r: with_sequence(r, loss_mask=lambda s: (2, *s.loss_mask[1:])),
    "was not sampled has a logprob": lambda r: with_sequence(
        r, logprobs=lambda s: (-1.0, *s.logprobs[1:])
    ),
    "not exactly the sampled ones": lambda r: with_sequence(
        r, loss_mask=lambda s: replaced(s.loss_mask, first_sampled(s), 0)
    ),
    "not the server's": lambda r: with_sequence(
        r, logprobs=lambda s: replaced(s.logprobs, first_sampled(s), -0.125)
    ),
    "differs from the tokens": lambda r: with_sequence(
        r, ids=lambda s: replaced(s.ids, first_sampled(s), 77)
    ),
    "the turns form": lambda r: r.model_copy(update={"sequences": r.sequences[:-1]}),
    "by the events": lambda r: r.model_copy(update={"events": ()}),
    "sequences are missing": lambda r: r.model_copy(update={"sequences": None}),
    "without a recorded reason": lambda r: r.model_copy(
        update={"agent": r.agent.model_copy(update={"params": {"mode": "tokens"}})}
    ),
    "a turn has no ids": lambda r: r.model_copy(
        update={"turns": (r.turns[0].model_copy(update={"prompt_ids": None}), *r.turns[1:])}
    ),
    "not a float32": lambda r: with_turn(r, logprobs=lambda t: (-0.1, *t.logprobs[1:])),
    "above 0": lambda r: with_turn(r, logprobs=lambda t: (0.5, *t.logprobs[1:])),
    "is negative": lambda r: with_turn(r, prompt_ids=lambda t: (-1, *t.prompt_ids[1:])),
    "logprobs": lambda r: with_turn(r, logprobs=lambda t: t.logprobs[:-1]),
}


def with_turn(record, **update):
    turn, *others = record.turns
    changed = turn.model_copy(update={name: f(turn) for name, f in update.items()})
    return record.model_copy(update={"turns": (changed, *others)})


@pytest.mark.parametrize("flaw", FORGERIES)
async def test_a_record_that_breaks_an_invariant_is_found(flaw):
    forged = FORGERIES[flaw](await sample_record())
    assert any(flaw in violation for violation in token_violations(forged))
