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

from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import Endpoint, close_clients
from hermes_queue.agent.endpoint.facts import server_facts
from hermes_queue.agent.endpoint.reply import LARGE_BYTES, read
from hermes_queue.errors import ModelError
from hermes_queue.models import AgentSpec, Message

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
    with pytest.raises(ModelError, match="gzip, deflate was asked for"):
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
    ("body", "said"),
    [
        (gzip.compress(GOOD)[:-9], "ends early"),
        (gzip.compress(GOOD) + b"more", "follows the end"),
        (b"no gzip", "cannot be unpacked"),
    ],
)
async def test_an_answer_that_is_badly_packed_is_a_fault_of_the_server(
    body: bytes, said: str
) -> None:
    with pytest.raises(ModelError, match=said):
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

    facts = await server_facts(ask_root, "http://here", "long", logprobs=False)
    assert facts.version is not None
    assert len(facts.version) <= 100


async def test_a_large_answer_is_read_beside_the_event_loop() -> None:
    import threading

    async def where(size: int) -> bool:
        return await read(lambda _: threading.current_thread(), b" " * size) is here

    here = threading.current_thread()
    assert await where(LARGE_BYTES)
    assert not await where(LARGE_BYTES + 1)
