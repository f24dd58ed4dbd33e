"""What a model server sends is bounded, however it is packed."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib
from functools import cache
from typing import Any

import pytest
import zstandard
from chat_endpoint import ChatEndpoint, Raw, completion

from hermes_queue.agent import AgentResult, AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import Endpoint, close_clients
from hermes_queue.agent.endpoint.facts import server_facts
from hermes_queue.agent.tokens.servers import own_servers, sglang, vllm
from hermes_queue.agent.tokens.servers.base import LARGE_BYTES, MalformedReply, read, rendered
from hermes_queue.errors import ModelError
from hermes_queue.models import AgentSpec, Message, Turn, Usage

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

CAP = 1 << 20
GOOD = json.dumps(completion()[1]).encode()


@pytest.fixture(autouse=True)
async def _closed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield
    await close_clients()


async def ask(raw: Raw, **params: Any) -> Any:
    async def no_gold() -> Any:
        raise AssertionError("only the oracle asks")

    from hermes_queue.settings import ModelSettings

    async with ChatEndpoint(lambda path, body: raw) as endpoint:
        spec = AgentSpec(kind="openai", model="m", params={"probe_tools": False, **params})
        settings = ModelSettings(base_url=endpoint.url, max_retries=0, answer_max_bytes=CAP)
        chat = make_chat(spec, AgentScript(oracle=no_gold), settings)
        message = Message(role="user", content="hi")
        return await chat.complete([message], [], {}, time.monotonic() + 60)


def packed(body: bytes, encoding: str, **more: Any) -> Raw:
    return Raw(body, headers={"Content-Encoding": encoding}, **more)


@cache
def gzip_bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    blanks = b" " * (1 << 20)
    pieces = [packer.compress(blanks) for _ in range(size >> 20)]
    return b"".join([*pieces, packer.flush()])


@pytest.mark.parametrize(
    ("mode", "status"), [("messages", 200), ("tokens", 200), ("messages", 500)]
)
async def test_an_answer_that_unpacks_to_too_much_is_a_fault_of_the_server(
    mode: str, status: int
) -> None:
    bomb = gzip_bomb(32 << 20)
    await ask(packed(gzip.compress(GOOD), "gzip"))  # imports and buffers are there
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="more than 1048576 bytes"):
            await ask(packed(bomb, "gzip", status=status), mode=mode)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 * CAP


async def test_a_plain_answer_is_bounded_too() -> None:
    with pytest.raises(ModelError, match="HERMES_QUEUE_MODEL_ANSWER_MAX_BYTES"):
        await ask(Raw(b" " * (CAP + 1)))


async def test_empty_blocks_without_end_are_bounded_by_what_they_take_on_the_wire() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    nothing = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    empty = packer.flush(zlib.Z_FULL_FLUSH)
    with pytest.raises(ModelError, match="more than 1048576 bytes"):
        await ask(packed(nothing + (empty or b"\0\0\0\xff\xff") * 220_000, "gzip"))


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip"])
async def test_an_encoding_that_was_not_asked_for_is_not_unpacked(encoding: str) -> None:
    body = zstandard.ZstdCompressor().compress(b" " * (64 << 20))
    with pytest.raises(ModelError, match="not as gzip, deflate"):
        await ask(packed(body, encoding))


@pytest.mark.parametrize(
    "raw",
    [
        packed(gzip.compress(GOOD), "gzip"),
        packed(gzip.compress(GOOD), "GZip"),
        packed(zlib.compress(GOOD), "deflate"),
        packed(GOOD, "identity"),
        packed(gzip.compress(GOOD + b" " * (CAP - len(GOOD))), "gzip"),
    ],
)
async def test_packed_answers_are_read(raw: Raw) -> None:
    assert (await ask(raw)).message.content == "hi"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (gzip.compress(GOOD)[:-9], "ends early"),
        (gzip.compress(GOOD) + b"more", "follows the end"),
        (b"no gzip", "cannot be decoded"),
    ],
)
async def test_an_answer_that_is_badly_packed_is_a_fault_of_the_server(
    body: bytes, expected: str
) -> None:
    with pytest.raises(ModelError, match=expected):
        await ask(packed(body, "gzip"))


@pytest.mark.parametrize(
    "headers", [{"X-Policy-Version": "7" * 100_000}, {f"X-{n}": "1" for n in range(10_000)}]
)
async def test_heads_of_an_answer_are_bounded(headers: dict[str, str]) -> None:
    with pytest.raises(ModelError, match=r"Got more than|Too many"):
        await ask(Raw(GOOD, headers=headers))


async def test_the_questions_of_probes_are_bounded_likewise() -> None:
    async with ChatEndpoint(lambda path, body: packed(gzip_bomb(8 << 20), "gzip")) as server:
        endpoint = Endpoint(server.url, "none", timeout_s=60, answer_max_bytes=CAP)
        assert await endpoint.ask("/tokenize", {"a": 1}) == (0, None)


async def test_what_a_server_says_it_is_stays_short() -> None:
    async def ask_root(path: str, body: Any) -> tuple[int, Any]:
        return 200, {"version": "9" * 1_000_000}

    facts = await server_facts(ask_root, "http://here", "long", own_servers(), logprobs=False)
    assert facts.version is not None
    assert len(facts.version) <= 100


async def test_a_large_answer_is_read_beside_the_event_loop() -> None:
    import threading

    async def where(size: int) -> bool:
        return await read(lambda _: threading.current_thread(), b" " * size) is here

    here = threading.current_thread()
    assert await where(LARGE_BYTES)
    assert not await where(LARGE_BYTES + 1)


def counted(**usage: Any) -> Raw:
    answer = completion()[1]
    return Raw(json.dumps(answer | {"usage": answer["usage"] | usage}).encode())


def switched(start: Any) -> Raw:
    spans = [{"version": "1", "start": 0}, {"version": "2", "start": start}]
    fields = {"weight_version": "2", "weight_versions": spans}
    return Raw(json.dumps(completion(top=fields)[1]).encode())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (counted(completion_tokens=10**400), "completion_tokens is 1000"),
        (counted(prompt_tokens=-(10**6)), "prompt_tokens is -1000000"),
        (counted(prompt_tokens="many"), "prompt_tokens is 'many'"),
        (counted(prompt_tokens_details={"cached_tokens": 2**70}), "cached_tokens is 1180"),
        (counted(completion_tokens=1.5), "completion_tokens is 1.5"),
        (switched(2**64), "start is 18446744073709551616"),
        (switched(2**70), "start is 1180591620717411303424"),
        (switched(-1), "start is -1"),
    ],
)
async def test_a_number_that_no_answer_can_have_is_a_fault_of_the_server(
    answer: Raw, expected: str
) -> None:
    with pytest.raises(ModelError, match=expected):
        await ask(answer)


async def test_the_numbers_of_an_answer_are_taken_as_they_are() -> None:
    reply = await ask(counted(completion_tokens=2**31 - 1, prompt_tokens=3.0))
    assert (reply.turn.usage.completion_tokens, reply.turn.usage.prompt_tokens) == (2**31 - 1, 3)
    reply = await ask(switched(5))
    assert reply.turn.policy_spans == (("1", 0), ("2", 5))


@pytest.mark.parametrize("number", [2**64, 10**400, -1, "x"], ids=["wide", "huge", "-1", "text"])
def test_token_servers_are_held_to_the_same_numbers(number: Any) -> None:
    logprobs = {"logprobs": {"token_logprobs": [-1.0]}, "token_ids": [1], "finish_reason": "stop"}
    answer = {"choices": [logprobs], "usage": {"completion_tokens": number}}
    with pytest.raises(MalformedReply, match="completion_tokens is"):
        vllm._completion(json.dumps(answer).encode(), (1,))
    meta = {"output_token_logprobs": [[-1.0, 1]], "cached_tokens": number}
    with pytest.raises(MalformedReply, match="cached_tokens is"):
        sglang._completion(json.dumps({"meta_info": meta}).encode(), 1)


@pytest.mark.parametrize(
    ("reported", "taken"), [(4096, 4096), (10**30, None), (-1, None), (0, None)]
)
def test_a_context_length_that_is_none_is_not_known(reported: int, taken: int | None) -> None:
    answer = json.dumps({"tokens": [1, 2], "max_model_len": reported}).encode()
    assert rendered(answer).max_model_tokens == taken


def test_no_chat_client_can_make_the_usage_of_a_trajectory_negative_or_endless() -> None:
    result = AgentResult()
    for tokens in (-(10**6), 5, 10**400):
        usage = Usage(prompt_tokens=min(tokens, 5), completion_tokens=tokens)
        result.turns.append(Turn(usage=usage))
    assert result.usage == Usage(prompt_tokens=10, completion_tokens=2**53 - 1)
