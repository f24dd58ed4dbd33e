"""What turns tell of the server that sampled them."""

from __future__ import annotations

import time

import pytest
from token_stub import TokenStub

from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.endpoint.facts import PROCESSED, RAW
from hermes_queue.errors import ModelError
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

USER = Message(role="user", content="hi")
SERVERS = ["vllm", "sglang"]
MODES = {"tokens": {"mode": "tokens"}, "messages": {"token_ids": True}}


async def gold():
    raise AssertionError("only the oracle asks")


async def sample(stub, *, mode="messages", turns=1, **params):
    """The turns of one trajectory."""
    params = {"server": stub.kind, **MODES[mode], **params}
    spec = AgentSpec(kind="openai", model="m", base_url=stub.url, params=params)
    chat = make_chat(spec, AgentScript(gold), ModelSettings(max_retries=0, trusted_urls=stub.url))
    messages, made = [USER], []
    for _ in range(turns):
        reply = await chat.complete(messages, [], {"temperature": 1.4}, time.monotonic() + 60)
        messages += [reply.message, USER]
        made.append(reply.turn)
    return made


@pytest.fixture(autouse=True)
async def _closed():
    yield
    await close_clients()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SERVERS)
async def test_a_turn_tells_server_version_sampling_and_what_its_logprobs_are(kind, mode):
    async with TokenStub(["a", "b"], kind=kind) as stub:
        turns = await sample(stub, mode=mode, turns=2)
    for turn in turns:
        assert turn.server == stub.url
        assert turn.server_version == f"{kind} 9.9"
        assert turn.logprobs_mode == RAW
        assert turn.sampling["temperature"] == 1.4
        assert turn.policy_version == ("7" if kind == "sglang" else None)


@pytest.mark.parametrize("kind", SERVERS)
async def test_logprobs_that_a_temperature_changes_are_processed(kind):
    async with TokenStub(["a"], kind=kind) as stub:
        stub.processed = True
        (turn,) = await sample(stub)
    assert turn.logprobs_mode == PROCESSED


async def test_what_the_job_says_of_logprobs_is_taken_and_the_server_is_not_asked():
    async with TokenStub(["a"]) as stub:
        (turn,) = await sample(stub, logprobs_mode="mine")
    assert turn.logprobs_mode == "mine"
    assert not [body for _, body in stub.requests if "top_logprobs" in body]


async def test_all_trajectories_of_a_process_ask_once():
    async with TokenStub(["a", "b", "c"]) as stub:
        for _ in range(3):
            await sample(stub)
    assert [path for path, _ in stub.requests].count("/version") == 1
    assert len([body for _, body in stub.requests if "top_logprobs" in body]) == 2


async def test_a_server_that_does_not_tell_its_version_has_none_and_is_not_asked_again():
    async with TokenStub(["a", "b"]) as stub:
        stub.version = None
        turns = [*await sample(stub), *await sample(stub)]
    assert [turn.server_version for turn in turns] == [None, None]
    assert [path for path, _ in stub.requests].count("/version") == 1


async def test_what_a_server_could_not_answer_is_asked_again_at_the_next_turn():
    async with TokenStub(["a", "b"]) as stub:
        stub.unwell = {"/version"}
        (first,) = await sample(stub)
        stub.unwell = set()
        (second,) = await sample(stub)
    assert (first.server_version, second.server_version) == (None, "vllm 9.9")


async def test_a_run_without_token_ids_asks_nothing():
    async with TokenStub(["a"]) as stub:
        spec = AgentSpec(kind="openai", model="m", base_url=stub.url)
        chat = make_chat(
            spec, AgentScript(gold), ModelSettings(max_retries=0, trusted_urls=stub.url)
        )
        turn = (await chat.complete([USER], [], {}, time.monotonic() + 60)).turn
    assert (turn.server_version, turn.logprobs_mode) == (None, None)
    assert [path for path, _ in stub.requests] == ["/v1/chat/completions"]


async def test_the_weights_that_nobody_has_named_are_unknown():
    def unnamed(answer):
        answer["metadata"]["weight_version"] = "default"

    async with TokenStub(["a"], kind="sglang") as stub:
        stub.break_reply = unnamed
        (turn,) = await sample(stub)
    assert turn.policy_version is None


SPANS = [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 2}]


@pytest.mark.parametrize("mode", ["messages", "tokens"])
async def test_weights_that_change_in_a_completion_are_all_on_its_turn(mode):
    def updated(answer):
        place = answer["meta_info"] if mode == "tokens" else answer["metadata"]
        place |= {"weight_version": "8", "weight_versions": SPANS}

    async with TokenStub(["ab"], kind="sglang") as stub:
        stub.break_reply = updated
        (turn,) = await sample(stub, mode=mode)
    assert (turn.policy_version, turn.policy_spans) == ("8", (("7", 0), ("8", 1)))


@pytest.mark.parametrize("mode", ["messages", "tokens"])
async def test_versions_that_cannot_be_read_are_refused_as_the_rest_of_a_reply(mode):
    def broken(answer):
        place = answer["meta_info"] if mode == "tokens" else answer["metadata"]
        place["weight_versions"] = [{"version": "7", "start": "first"}, "8"]

    async with TokenStub(["ab"], kind="sglang") as stub:
        stub.break_reply = broken
        with pytest.raises(ModelError, match="first"):
            await sample(stub, mode=mode)
