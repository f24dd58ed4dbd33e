"""The endpoint of a program's calls over HTTP: keys, limits, waiting, delivery, its end."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from scripted_session import KEY, ScriptedSession, reply, serving

from hermes_queue.agent.capture.bounds import Bounds, Memory
from hermes_queue.agent.capture.calls import Answer, ModelCall, Refused
from hermes_queue.agent.capture.opening import open_server

BEARER = {"Authorization": f"Bearer {KEY}"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}
BODIES = {"/v1/chat/completions": CHAT, "/v1/responses": {"input": "x"}, "/v1/messages": CHAT}
QUICK = Bounds(first_sign_s=0.02, signs_s=0.02)


async def ask(
    url: str, path: str = "/v1/chat/completions", *, method: str = "POST", **more: Any
) -> tuple[int, bytes]:
    """Status and body of one request with the right key."""
    more.setdefault("headers", BEARER)
    if method == "POST" and "data" not in more:
        more.setdefault("json", BODIES.get(path, CHAT))
    import aiohttp

    async with aiohttp.ClientSession() as client, client.request(method, url + path, **more) as got:
        return got.status, await got.read()


@asynccontextmanager
async def posted(url: str, body: Any) -> AsyncIterator[Any]:
    """The response to a request with the right key, once its head is there."""
    import aiohttp

    async with aiohttp.ClientSession(headers=BEARER) as client:
        async with client.post(url, json=body) as got:
            yield got


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection."""
    found = urlsplit(url)
    reader, writer = await asyncio.open_connection(found.hostname, found.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def request(body: Any, path: str = "/v1/chat/completions") -> bytes:
    """A request with the right key, as bytes."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection as a killed process or an impatient client does."""
    found = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends without an answer, in whichever way."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def waiting_for(gate: asyncio.Event) -> Callable[[ModelCall], Any]:
    """A script that answers when `gate` is set."""

    async def script(call: ModelCall) -> Answer:
        await gate.wait()
        return reply()

    return script


# --- paths and the key ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/v1/messages", "/messages/"])
async def test_a_path_may_have_its_version_or_not(path: str) -> None:
    session = ScriptedSession()
    async with serving(session) as url:
        status, body = await ask(url, path + "?beta=true")
    assert (status, json.loads(body)["type"]) == (200, "message")
    assert session.calls[0].path == path


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/api/tags", 404), ("POST", "/", 404), ("GET", "/v1/messages", 405)],
)
async def test_other_requests_are_no_calls_and_are_counted(
    method: str, path: str, status: int
) -> None:
    session = ScriptedSession()
    async with serving(session) as url:
        assert (await ask(url, path, method=method, headers={}))[0] == status
    assert session.told == [(method, path, status)]


@pytest.mark.parametrize(
    "headers", [BEARER, {"x-api-key": KEY}, {"api-key": KEY}, {"authorization": f"bearer  {KEY}"}]
)
async def test_the_key_may_come_in_any_of_the_usual_headers(headers: dict[str, str]) -> None:
    async with serving(ScriptedSession()) as url:
        assert (await ask(url, headers=headers))[0] == 200


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": KEY[:-1]}, {"Authorization": KEY}, {"api-key": "hq-\u00e9"}]
)
async def test_a_wrong_key_is_refused_and_counted(headers: dict[str, str]) -> None:
    session = ScriptedSession()
    async with serving(session) as url:
        status, body = await ask(url, headers=headers)
    assert (status, json.loads(body)["error"]["type"]) == (401, "authentication_error")
    assert (session.calls, session.told) == ([], [("POST", "/v1/chat/completions", 401)])


async def test_headers_that_name_a_sub_agent_or_a_repetition_are_hints() -> None:
    session = ScriptedSession()
    hints = {"X-Claude-Code-Agent-Id": "a7", "x-stainless-retry-count": "2", "X-Other": "no"}
    async with serving(session) as url:
        await ask(url, headers=BEARER | hints)
    [call] = session.calls
    assert (call.hints, call.retry_count) == ({"x-claude-code-agent-id": "a7"}, 2)


async def test_models_and_counts_have_the_shape_of_the_api_that_asks() -> None:
    async with serving(ScriptedSession()) as url:
        _, openai = await ask(url, "/v1/models", method="GET")
        claude = BEARER | {"anthropic-version": "2023-06-01"}
        _, anthropic = await ask(url, "/v1/models", method="GET", headers=claude)
        _, count = await ask(url, "/v1/messages/count_tokens", json=CHAT | {"system": "s"})
    assert json.loads(openai)["data"][0]["object"] == "model"
    assert json.loads(anthropic)["data"][0]["display_name"] == "policy"
    assert json.loads(count) == {"input_tokens": 14}


async def test_a_response_is_continued_by_its_id() -> None:
    session = ScriptedSession()
    async with serving(session) as url:
        _, body = await ask(url, "/v1/responses")
        more = {"input": "y", "previous_response_id": json.loads(body)["id"]}
        await ask(url, "/v1/responses", json=more)
    assert [each.content for each in session.calls[1].messages] == ["x", "hi", "y"]


# --- limits -----------------------------------------------------------------------------


async def drip() -> AsyncIterator[bytes]:
    for _ in range(1000):
        yield 100 * b" "
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("bounds", "more", "status", "text"),
    [
        (Bounds(body_bytes=9), {}, 413, "more than 9 bytes"),
        (Bounds(unannounced_bytes=999), {"data": drip()}, 413, "more than 999 bytes: announce"),
        (Bounds(body_s=0.05), {"data": drip()}, 408, "within 0.05 s"),
        (
            Bounds(),
            {"data": b"x", "headers": BEARER | {"Content-Encoding": "gzip"}},
            415,
            "send it as it is",
        ),
        (Bounds(), {"data": b"{"}, 400, "not JSON"),
    ],
)
async def test_bodies_that_are_not_taken_are_refused_by_their_reason(
    bounds: Bounds, more: dict[str, Any], status: int, text: str
) -> None:
    session = ScriptedSession()
    async with serving(session, bounds) as url:
        got, body = await ask(url, **more)
    assert (got, text in json.loads(body)["error"]["message"]) == (status, True)
    assert (session.calls, session.told) == ([], [("POST", "/v1/chat/completions", status)])


async def test_a_header_has_a_time_limit_on_every_request_of_a_connection() -> None:
    async with serving(ScriptedSession(), Bounds(header_s=0.05)) as url:
        for before in (b"", request(CHAT)):
            async with connected(url) as (reader, writer):
                writer.write(before)
                if before:
                    await reader.readuntil(b'"total_tokens":16')
                writer.write(b"POST /v1/chat")
                assert b"HTTP/1.1" not in await reader.read()


async def test_only_so_many_connections_are_taken() -> None:
    session = ScriptedSession()
    async with serving(session, Bounds(connections=1)) as url, connected(url) as (reader, writer):
        writer.write(request(CHAT))
        await reader.readuntil(b"HTTP/1.1 200")
        async with connected(url) as (second, _):
            assert await is_closed(second)


async def test_only_so_many_calls_are_answered_at_once_and_the_others_wait() -> None:
    gate = asyncio.Event()
    session = ScriptedSession(waiting_for(gate))
    async with serving(session, Bounds(calls=2, first_sign_s=0.02)) as url:
        asked = [asyncio.create_task(ask(url)) for _ in range(4)]
        async with connected(url) as (reader, writer):
            writer.write(request(CHAT))
            await reader.readuntil(b"HTTP/1.1 200")  # it waits, and is told so
            assert len(session.calls) == 2
            gate.set()
            assert {status for status, _ in await asyncio.gather(*asked)} == {200}
            await reader.readuntil(b"total_tokens")
    assert len(session.calls) == 5


async def test_requests_that_bring_no_answer_are_slowed_down_and_calls_are_not() -> None:
    async with serving(ScriptedSession(), Bounds(requests=2, requests_per_s=0.001)) as url:
        assert {(await ask(url))[0] for _ in range(5)} == {200}
        assert {(await ask(url, "/props"))[0] for _ in range(2)} == {404}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(url, "/props"), 0.1)


async def test_a_client_that_leaves_while_it_waits_for_memory_breaks_nothing() -> None:
    memory = Memory(10)

    async def hold() -> None:
        async with memory.held(8):
            pass

    async with memory.held(8):
        waiting = [asyncio.create_task(hold()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    assert isinstance((await asyncio.gather(*waiting, return_exceptions=True))[0], BaseException)
    async with asyncio.timeout(5), memory.held(10):
        pass


async def test_bodies_wait_for_memory_in_their_order() -> None:
    memory, order = Memory(10), []
    release = asyncio.Event()

    async def hold(size: int) -> None:
        async with memory.held(size):
            order.append(size)
            await release.wait()

    async with memory.held(9):
        first, given_up, small = (asyncio.create_task(hold(size)) for size in (8, 10, 1))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert order == []
    release.set()
    await asyncio.gather(first, small)
    assert order == [8, 1]
    async with asyncio.timeout(5), memory.held(10):
        pass


# --- waiting ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("/v1/chat/completions", b": keepalive\n"),
        ("/v1/responses", b": keepalive\n"),
        ("/v1/messages", b'event: ping\ndata: {"type":"ping"}\n\n'),
    ],
)
async def test_a_stream_that_waits_shows_signs_of_life(path: str, sign: bytes) -> None:
    gate = asyncio.Event()
    async with serving(ScriptedSession(waiting_for(gate)), QUICK) as url:
        async with posted(url + path, BODIES[path] | {"stream": True}) as got:
            assert await got.content.readexactly(2 * len(sign)) == 2 * sign
            gate.set()
            rest = (await got.read()).removeprefix(sign)
    assert rest.startswith((b"data: ", b"event: "))


async def test_json_that_waits_is_preceded_by_blanks() -> None:
    gate = asyncio.Event()
    async with serving(ScriptedSession(waiting_for(gate)), QUICK) as url:
        async with posted(f"{url}/v1/messages", CHAT) as got:
            assert await got.content.readexactly(2) == b"  "
            gate.set()
            assert json.loads(await got.read())["type"] == "message"


async def test_a_refusal_before_the_first_sign_has_its_status_and_forbids_a_repetition() -> None:
    async def script(call: ModelCall) -> Answer:
        raise Refused("stopped", "trajectory stopped: max_turns")

    async with serving(ScriptedSession(script)) as url:
        async with posted(f"{url}/v1/messages", CHAT) as got:
            error = (await got.json())["error"]
            assert (got.status, got.headers["x-should-retry"]) == (401, "false")
    assert error == {
        "type": "authentication_error",
        "message": "trajectory stopped: max_turns",
    }


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_after_the_first_sign_closes_the_connection(streamed: bool) -> None:
    gate = asyncio.Event()

    async def script(call: ModelCall) -> Answer:
        await gate.wait()
        raise Refused("stopped", "trajectory stopped: max_turns")

    async with serving(ScriptedSession(script), QUICK) as url, connected(url) as (reader, writer):
        writer.write(request(CHAT | {"stream": streamed}))
        await reader.readuntil(b"HTTP/1.1 200")
        gate.set()
        assert b"max_turns" not in await reader.read()


async def test_responses_tells_in_its_stream_that_the_context_is_full() -> None:
    async def script(call: ModelCall) -> Answer:
        raise Refused("context_length", "too many tokens")

    async with serving(ScriptedSession(script)) as url:
        status, body = await ask(url, "/v1/responses", json={"input": "x", "stream": True})
        plain, _ = await ask(url, "/v1/responses")
    assert (status, plain) == (200, 400)
    last = json.loads(body.split(b"data: ")[-1])
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "context_length_exceeded"


# --- delivery ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_was_taken_is_delivered_once(path: str, streamed: bool) -> None:
    session = ScriptedSession()
    async with serving(session) as url:
        await ask(url, path, json=BODIES[path] | {"stream": streamed})
    assert session.told == [("delivered", 0)]


async def test_a_client_that_leaves_while_it_waits_ends_the_waiting() -> None:
    session = ScriptedSession(waiting_for(asyncio.Event()))
    async with serving(session) as url:
        async with connected(url) as (_, writer):
            writer.write(request(CHAT))
            while not session.calls:
                await asyncio.sleep(0.001)
            reset(writer)
        await session.until_told("cancelled")
    assert session.told == [("cancelled",)]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_a_client_did_not_take_whole_is_undelivered(streamed: bool) -> None:
    async def script(call: ModelCall) -> Answer:
        return reply(12_000_000 * "y")

    session = ScriptedSession(script)
    async with serving(session) as url, connected(url) as (reader, writer):
        writer.write(request(CHAT | {"stream": streamed}))
        await reader.readuntil(b"yyyy")
        assert session.told == []
        reset(writer)
        await session.until_told("undelivered", 0)
    assert session.told == [("undelivered", 0)]


async def test_a_client_that_takes_nothing_is_given_up() -> None:
    async def script(call: ModelCall) -> Answer:
        return reply(12_000_000 * "y")

    session = ScriptedSession(script)
    async with serving(session, Bounds(drain_s=0.1)) as url, connected(url) as (_, writer):
        writer.write(request(CHAT))
        await session.until_told("undelivered", 0)


async def test_an_answer_that_comes_as_its_client_leaves_is_undelivered() -> None:
    session = ScriptedSession()
    async with serving(session) as url, connected(url) as (_, writer):

        async def script(call: ModelCall) -> Answer:
            reset(writer)
            return reply()

        session.script = script
        writer.write(request(CHAT))
        await session.until_told("undelivered", 0)
    assert session.told == [("undelivered", 0)]


# --- the end ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RuntimeError, ConnectionResetError])
async def test_a_failure_of_ours_is_told_once_and_ends_all_calls(kind: type[Exception]) -> None:
    async def script(call: ModelCall) -> Answer:
        raise kind("a bug")

    session = ScriptedSession(script)
    async with serving(session) as url:
        assert [(await ask(url))[0] for _ in range(3)] == [500, 401, 401]
    [broken] = [each for each in session.told if each[0] == "broken"]
    assert "a bug" in broken[1]
    assert len(session.calls) == 1


async def test_closing_cancels_what_is_open_and_leaves_nothing_behind() -> None:
    session = ScriptedSession(waiting_for(asyncio.Event()))
    server = await open_server(session, bounds=QUICK)
    listener = await asyncio.get_running_loop().create_server(server.factory, "127.0.0.1", 0)
    before = asyncio.all_tasks()
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with connected(url) as (reader, writer), connected(url) as (idle, _):
        writer.write(request(CHAT))
        await reader.readuntil(b"HTTP/1.1 200")
        await server.close()
        await server.close()
        assert await reader.read() is not None
        assert await idle.read() == b""
        async with connected(url) as (late, _):
            assert await is_closed(late)
    listener.close()
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before
    assert session.told == [("cancelled",)]
