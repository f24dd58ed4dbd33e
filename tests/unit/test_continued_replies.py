"""A reply that the server aborts is continued from its tokens, with the versions of each span."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from records import make_job, make_record
from token_stub import TokenStub, encode, logprob

from hermes_queue import policy
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.merge import merge_with_breaks
from hermes_queue.agent.tokens.servers.base import MalformedReply, sampled
from hermes_queue.errors import ModelConfigError, ModelError
from hermes_queue.models import AgentSpec, Message, Turn, Usage
from hermes_queue.settings import ModelSettings

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

USER = Message(role="user", content="hi")
SERVERS = ["vllm", "sglang"]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)


def abort(answer: dict[str, Any], version: str | None = None) -> None:
    """Make it an answer that was aborted; a text that is cut off has no end of turn."""
    if "meta_info" in answer:
        answer["meta_info"]["finish_reason"] = {"type": "abort", "message": "Abort"}
        answer["meta_info"]["weight_version"] = version or "default"
    else:
        answer["choices"][0]["finish_reason"] = "abort"


def aborts(count: int, *versions: str) -> Callable[[dict[str, Any]], None]:
    """Abort so many answers; of SGLang, answers are of `versions` in turn."""
    seen = 0

    def change(answer: dict[str, Any]) -> None:
        nonlocal seen
        if "choices" not in answer and "meta_info" not in answer:
            return
        version = versions[seen] if seen < len(versions) else None
        if seen < count:
            abort(answer, version)
        elif version and "meta_info" in answer:
            answer["meta_info"]["weight_version"] = version
        seen += 1

    return change


@asynccontextmanager
async def talk(
    *replies: str, kind: str = "vllm", retries: int = 1, continuations: int = 16, **params: str
):
    async with TokenStub(list(replies), kind=kind) as stub:
        spec = AgentSpec(
            kind="openai",
            model="m",
            base_url=stub.url,
            params={"mode": "tokens", "server": kind, **params},
        )

        async def gold():
            raise AssertionError("only the oracle asks")

        settings = ModelSettings(
            max_retries=retries, trusted_urls=stub.url, max_continuations=continuations
        )
        yield stub, make_chat(spec, AgentScript(gold), settings)
        await close_clients()


async def reply_of(chat, left_s: float = 20.0, **sampling: object):
    return await chat.complete([USER], [], sampling, time.monotonic() + left_s)


def prompts(stub: TokenStub) -> list[list[int]]:
    """The ids of each request to sample."""
    return [
        body.get("prompt") or body["input_ids"]
        for path, body in stub.requests
        if path in ("/v1/completions", "/generate")
    ]


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_aborted_reply_goes_on_from_its_tokens(kind: str) -> None:
    async with talk("Hel...", "lo wo...", "rld", kind=kind) as (stub, chat):
        stub.break_reply = aborts(2)
        reply = await reply_of(chat)
    first = encode("user:hi<|end|>\nassistant:")
    sampled = encode("Hel...lo wo...rld<|end|>")
    assert prompts(stub) == [
        first,
        [*first, *encode("Hel...")],
        [*first, *encode("Hel...lo wo...")],
    ]
    turn = reply.turn
    assert (list(turn.prompt_ids), list(turn.completion_ids)) == (first, sampled)
    expected = [logprob(len(first) + place) for place in range(len(sampled))]
    assert list(turn.logprobs) == list(array("f", expected))
    assert (turn.finish_reason, turn.usage.completion_tokens) == ("stop", len(sampled))
    assert reply.message.content == "Hel...lo wo...rld"
    names = [event["event"] for event in reply.events]
    assert names == ["reply_aborted", "reply_aborted", "reply_continued"]
    assert reply.events[-1]["at"] == [6, 14]
    [sequence], breaks = merge_with_breaks([turn])
    assert (sum(sequence.loss_mask), breaks) == (len(sampled), ())


async def test_each_span_has_the_version_that_sampled_it() -> None:
    async with talk("ab...", "cd...", "ef", kind="sglang") as (stub, chat):
        stub.break_reply = aborts(2, "7", "8", "8")
        turn = (await reply_of(chat)).turn
    assert (turn.policy_version, turn.policy_spans) == ("8", (("7", 0), ("8", 5)))
    [sequence], _ = merge_with_breaks([turn])
    record = make_record(make_job()).model_copy(update={"turns": (turn,), "sequences": (sequence,)})
    context, end = len(turn.prompt_ids), len(sequence.ids)
    spans = [(context, context + 5, "7"), (context + 5, end, "8")]
    assert policy.sampled_spans(record, sequence) == spans
    assert policy.span(record.turns) == ("7", "8")


async def test_each_span_has_the_model_that_sampled_it_where_models_are_versions() -> None:
    names = ["step-7", "step-8", "step-8"]
    async with talk("ab...", "cd...", "ef", policy_version="model") as (stub, chat):
        change = aborts(2)

        def change_and_name(answer: dict[str, Any]) -> None:
            change(answer)
            answer["model"] = names[len(prompts(stub)) - 1]

        stub.break_reply = change_and_name
        turn = (await reply_of(chat)).turn
    assert (turn.policy_version, turn.policy_spans) == ("step-8", (("step-7", 0), ("step-8", 5)))
    assert policy.span([turn]) == ("step-7", "step-8")


def test_each_sequence_has_the_spans_of_its_own_turns() -> None:
    def of(prompt: list[int], version: str, *spans: tuple[str, int]) -> Turn:
        ids, made = (9, 9), {"policy_version": version, "policy_spans": spans}
        return Turn(prompt_ids=prompt, completion_ids=ids, logprobs=(-0.5, -0.5), **made)

    turns = [of([1], "3"), of([1, 9, 9, 2], "4", ("3", 0), ("4", 1)), of([5, 6], "5")]
    sequences, _ = merge_with_breaks(turns)
    update = {"turns": tuple(turns), "sequences": sequences}
    record = make_record(make_job()).model_copy(update=update)
    first, second = (policy.sampled_spans(record, each) for each in record.sequences)
    assert first == [(1, 3, "3"), (4, 5, "3"), (5, 6, "4")]
    assert second == [(2, 4, "5")]


@pytest.mark.parametrize("spans", [(("3", 0), ("4", 50)), (("3", 0), ("4", 2), ("5", 1))])
def test_spans_that_no_completion_can_have_stay_within_it(spans) -> None:
    made = {"completion_ids": (9, 9), "logprobs": (-0.5, -0.5), "policy_spans": spans}
    turn = Turn(prompt_ids=(1,), **made)
    [sequence], _ = merge_with_breaks([turn])
    update = {"turns": (turn,), "sequences": (sequence,)}
    record = make_record(make_job()).model_copy(update=update)
    assert policy.sampled_spans(record, sequence) == [(1, 3, "3")]
    with pytest.raises(MalformedReply, match="spans of weights"):
        sampled(
            [9, 9], [-0.5, -0.5], finish_reason="stop", stopped_by=None, usage=Usage(),
            policy_spans=spans,
        )  # fmt: skip


async def test_weights_without_a_name_between_named_ones_stay_apart() -> None:
    async with talk("ab...", "cd", kind="sglang") as (stub, chat):
        stub.break_reply = aborts(1, "default", "8")
        turn = (await reply_of(chat)).turn
    assert turn.policy_spans == (("unknown", 0), ("8", 5))
    assert policy.version_number("unknown") is None


async def test_a_server_that_names_no_weights_leaves_no_spans() -> None:
    async with talk("ab...", "cd") as (stub, chat):
        stub.break_reply = aborts(1)
        turn = (await reply_of(chat)).turn
    assert (turn.policy_version, turn.policy_spans) == (None, ())


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_whole_reply_keeps_to_its_longest_length(kind: str) -> None:
    async with talk("Hello...", "you...", kind=kind) as (stub, chat):
        stub.break_reply = aborts(1)
        await reply_of(chat, max_tokens=20)
    bodies = [body for path, body in stub.requests if path in ("/v1/completions", "/generate")]
    limits = [b.get("max_tokens") or b["sampling_params"]["max_new_tokens"] for b in bodies]
    assert limits == [20, 20 - 8]


async def test_a_reply_that_was_aborted_at_its_longest_length_is_complete() -> None:
    async with talk("Hello...") as (stub, chat):
        stub.break_reply = aborts(1)
        reply = await reply_of(chat, max_tokens=8)
    assert (reply.turn.finish_reason, len(reply.turn.completion_ids)) == ("length", 8)
    assert len(prompts(stub)) == 1


async def test_aborts_that_are_continued_use_no_retries_and_are_bounded() -> None:
    async with talk(*["a..."] * 3, "done", retries=0) as (stub, chat):
        stub.break_reply = aborts(3)
        assert (await reply_of(chat)).message.content == "a...a...a...done"
    async with talk(*["a..."] * 4, "done", retries=0, continuations=3) as (stub, chat):
        stub.break_reply = aborts(4)
        with pytest.raises(ModelError, match="aborted 4 times"):
            await reply_of(chat)


async def test_after_the_bound_a_reply_begins_anew() -> None:
    async with talk("a...", "b...", "done", continuations=1) as (stub, chat):
        stub.break_reply = aborts(2)
        reply = await reply_of(chat)
    assert reply.message.content == "done"
    assert prompts(stub)[2] == prompts(stub)[0]


@pytest.mark.parametrize(
    "sampling",
    [
        {"stop": ["\n"]},
        {"seed": 3},
        {"presence_penalty": 1.0},
        {"repetition_penalty": 1.1},
        {"guided_regex": "a*"},
    ],
)
async def test_what_would_not_be_sampled_alike_begins_anew(sampling: dict[str, Any]) -> None:
    async with talk("ab...", "whole") as (stub, chat):
        stub.break_reply = aborts(1)
        reply = await reply_of(chat, **sampling)
    assert reply.message.content == "whole"
    assert f"sampled with {next(iter(sampling))}" in reply.events[0]["reason"]


async def test_a_continuation_that_fails_is_tried_again_from_the_same_tokens() -> None:
    async with talk("Hel...", "lo") as (stub, chat):
        stub.break_reply = aborts(1)
        failed = []

        async def fail_once(path: str) -> None:
            is_second = path == "/v1/completions" and len(prompts(stub)) == 2
            stub.unwell = {path} if is_second and not failed else set()
            if is_second and not failed:
                failed.append(path)
                stub.replies.insert(0, "lost")

        stub.gate = fail_once
        reply = await reply_of(chat)
    assert reply.message.content == "Hel...lo"
    assert prompts(stub)[1] == prompts(stub)[2]


async def test_a_continuation_of_another_prompt_is_not_joined() -> None:
    async with talk("Hel...", "other", "whole") as (stub, chat):
        change = aborts(1)

        def change_and_echo(answer: dict[str, Any]) -> None:
            change(answer)
            echoed = prompts(stub)[-1]
            wrong = len(prompts(stub)) == 2
            answer["choices"][0]["prompt_token_ids"] = echoed[1:] if wrong else echoed

        stub.break_reply = change_and_echo
        reply = await reply_of(chat)
    assert reply.message.content == "whole"
    assert "other ids" in reply.events[1]["reason"]


async def test_a_truncated_continuation_is_refused() -> None:
    async with talk("Hel...", "lo", kind="sglang") as (stub, chat):
        change = aborts(1)

        def change_and_count(answer: dict[str, Any]) -> None:
            change(answer)
            if len(prompts(stub)) == 2:
                answer["meta_info"]["prompt_tokens"] -= 1

        stub.break_reply = change_and_count
        with pytest.raises(ModelConfigError, match="truncate"):
            await reply_of(chat)


async def test_an_engine_that_stalls_after_an_abort_gives_no_outcome() -> None:
    async with talk("Hel...", "lo") as (stub, chat):
        stub.break_reply = aborts(1)

        async def stall(path: str) -> None:
            if len(prompts(stub)) == 2:
                stub.requests.clear()
                await asyncio.Event().wait()

        stub.gate = stall
        with pytest.raises(ModelError):
            await reply_of(chat, left_s=1.0)


async def test_no_continuations_by_the_setting() -> None:
    async with talk("ab...", "whole", continuations=0) as (stub, chat):
        stub.break_reply = aborts(1)
        assert (await reply_of(chat)).message.content == "whole"
