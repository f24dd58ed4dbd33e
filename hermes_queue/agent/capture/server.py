"""HTTP between a program in a slot and its session: paths, the key, limits, delivery.

Whatever connects is a program in a slot: it may send slowly, too much, or nothing. So the time of a
request's headers and the size and time of its body are bounded. While there is no answer, the
client is kept waiting with signs of life; the session learns whether it took the answer.
Conversations are kept that a later call may continue by the id of an answer.

Imports aiohttp: open it with `opening.open_server`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from hermes_queue.agent.capture.bounds import Bounds, Memory, Pace
from hermes_queue.agent.capture.calls import Answer, Refused, Session
from hermes_queue.agent.capture.dialects import chat, messages, responses
from hermes_queue.agent.capture.dialects.base import (
    Asked,
    BadCall,
    Dialect,
    Head,
    Problem,
    compact_json,
    problem_of,
)
from hermes_queue.agent.capture.dialects.body import read_object, tidy
from hermes_queue.agent.capture.dialects.outputs import response_id
from hermes_queue.models import Message

T = TypeVar("T")

LARGE_BYTES = 1 << 18
LARGE_COUNT = 2_000
"""Larger bodies, and those with more objects, are read in a thread."""
PATH_MAX_CHARS = 200
HINT_MAX_CHARS = 2048
RETRY_MAX = 1_000
HINTS = (
    *("x-claude-code-session-id", "x-claude-code-agent-id", "x-claude-code-parent-agent-id"),
    *("x-session-id", "x-parent-session-id", "x-parent-session-affinity"),
    *("x-codex-turn-metadata", "x-codex-parent-thread-id", "x-openai-subagent"),
)
"""Headers by which programs name the session or sub-agent that calls."""
_DIALECTS = {
    "/chat/completions": chat.DIALECT,
    "/responses": responses.DIALECT,
    "/messages": messages.DIALECT,
    "/messages/count_tokens": messages.DIALECT,
}
_COUNT, _MODELS = "/messages/count_tokens", "/models"
_quiet = logging.getLogger(f"{__name__}.http")
_quiet.setLevel(logging.CRITICAL + 1)
"""For aiohttp, which logs a traceback for each invalid request: a program could fill the disk."""

_RESPONSES_MAX = 16
_RESPONSES_BYTES_MAX = 1 << 26

_JSON = {"Content-Type": "application/json"}
_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


class CallServer:
    """Serves the calls of one session. To be made on the event loop that serves them."""

    def __init__(
        self, session: Session, *, refusal_status: int = 401, bounds: Bounds | None = None
    ) -> None:
        """Serve `session`; a trajectory that is over is answered with `refusal_status`."""
        self._session = session
        self._refusal_status = refusal_status
        self._bounds = bounds or Bounds()
        self._key = session.key.encode()
        self._closed = False
        self._broken = False
        """Whether the server failed, so that it answers no more calls."""
        self._working: set[asyncio.Task[object]] = set()
        self._memory = Memory(max(self._bounds.body_bytes, self._bounds.unannounced_bytes))
        self._places = asyncio.Semaphore(self._bounds.calls)
        self._reading = asyncio.Lock()
        """Large bodies are read one at a time: objects take many times the memory of JSON."""
        self._pace = Pace(
            self._bounds.requests, self._bounds.requests_per_s, self._bounds.connections
        )
        self._stored = _Responses()
        self._server = web.Server(self._handle, handler_cancellation=True)

    def factory(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection: `SandboxBackend.listen` takes this method."""
        if self._closed or len(self._server.connections) >= self._bounds.connections:
            return _Turned()
        connection = _CallConnection(
            self._server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._bounds.idle_s,
            access_log=_quiet,
            logger=_quiet,
            lingering_time=5.0,
            max_field_size=16_384,
            auto_decompress=False,
        )
        connection.header_s = self._bounds.header_s
        return connection

    async def close(self) -> None:
        """Answer nothing more: cancel what is being answered and close all connections.

        An answer that was not taken by now is undelivered. May be called again.
        """
        self._closed = True
        working = [*self._working]
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        self._server.pre_shutdown()  # ends idle connections, which `shutdown` would wait for
        await self._server.shutdown(1.0)

    # --- one request --------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = _path(request)
        with self._counted(request):
            try:
                await self._pace.turn()
                return await self._respond(request, path)
            except _RejectedRequest as error:
                self._session.rejected(request.method, _sent(request), error.status)
                found = Problem(error.status, str(error))
                return await self._refuse(request, path, found, close=error.close)
            except ConnectionError:
                raise  # aiohttp closes what is left of the connection
            except Exception as error:  # noqa: BLE001 - ours: the attempt must not be scored
                return await self._fail(request, path, error)

    @contextmanager
    def _counted(self, request: web.BaseRequest) -> Iterator[None]:
        """Let `close` find the task, and the connection know that it waits for no header."""
        task, connection = asyncio.current_task(), request.protocol
        if task is not None:
            self._working.add(task)
        if isinstance(connection, _CallConnection):
            connection.request_begins()
        try:
            yield
        finally:
            if task is not None:
                self._working.discard(task)
            if isinstance(connection, _CallConnection):
                connection.request_ends()

    async def _fail(
        self, request: web.BaseRequest, path: str, error: Exception
    ) -> web.StreamResponse:
        if not self._broken:
            self._broken = True
            self._session.broken(error)
        if request.writer.output_size:
            raise ConnectionError("an answer has begun") from error
        return await self._refuse(request, path, Problem(500, "the endpoint failed"), close=True)

    async def _refuse(
        self, request: web.BaseRequest, path: str, found: Problem, *, close: bool = False
    ) -> web.StreamResponse:
        dialect = _DIALECTS.get(path) or chat.DIALECT
        if path == _MODELS and "anthropic-version" in request.headers:
            dialect = messages.DIALECT
        return await _send_json(request, dialect.problem(found), status=found.status, close=close)

    async def _respond(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        self._check(request, path)
        if path == _MODELS:
            return await _send_json(request, _models(request, self._session.model))
        dialect = _DIALECTS[path]
        size = _size_of(request, self._bounds)
        async with self._memory.held(size):
            body = await _read_body(request, size, self._bounds)
            try:
                asked = await self._read(dialect, body, _head(request))
            except BadCall as error:
                self._session.rejected(request.method, _sent(request), 400)
                return await self._refuse(request, path, self._problem(error, dialect))
            del body
            if path == _COUNT:
                return await self._count(request, dialect, asked)
            return await self._answer(request, dialect, asked)

    def _check(self, request: web.BaseRequest, path: str) -> None:
        """Raises RejectedRequest: no such path, or a wrong key."""
        if path not in _DIALECTS and path != _MODELS:
            raise _RejectedRequest(404, f"there is no {_sent(request)}")
        if request.method != ("GET" if path == _MODELS else "POST"):
            raise _RejectedRequest(405, f"{_sent(request)} takes no {request.method}")
        if not self._may(request):
            raise _RejectedRequest(401, "the API key is not the one of this trajectory", close=True)
        if self._closed or self._broken:
            raise _RejectedRequest(self._refusal_status, "trajectory stopped", close=True)

    def _may(self, request: web.BaseRequest) -> bool:
        given = [request.headers.get(name, "") for name in ("x-api-key", "api-key")]
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given.append(token.strip())
        same = [hmac.compare_digest(each.encode(errors="replace"), self._key) for each in given]
        return any(same)

    async def _read(self, dialect: Dialect, body: bytes, head: Head) -> Asked:
        def read() -> Asked:
            return dialect.read(read_object(body), head, self._stored.conversation)

        if len(body) <= LARGE_BYTES and body.count(b"{") <= LARGE_COUNT:
            return read()
        async with self._reading:
            return await asyncio.to_thread(read)

    # --- a call -------------------------------------------------------------------------

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._places:
            try:
                return await work()
            except ConnectionError as error:  # not the client's: it would be taken for its leaving
                raise RuntimeError(f"the session failed: {error}") from error

    async def _answer(
        self, request: web.BaseRequest, dialect: Dialect, asked: Asked
    ) -> web.StreamResponse:
        delivery = _CallDelivery(request, dialect, asked, self._bounds)
        work = asyncio.create_task(self._in_turn(lambda: self._session.answer(asked.call)))
        try:
            answer = await delivery.meanwhile(work)
        except Refused as error:
            return await self._refused(request, dialect, asked, delivery, error)
        except BaseException:  # the client went away just as its answer came
            if work.done() and not work.cancelled() and work.exception() is None:
                self._session.undelivered(work.result())
            raise
        if asked.continued is not None:
            conversation = (*asked.continued, answer.message)
            self._stored.keep(response_id(answer.turn), conversation)
        return await self._deliver(delivery, dialect, asked, answer)

    async def _deliver(
        self, delivery: _CallDelivery, dialect: Dialect, asked: Asked, answer: Answer
    ) -> web.StreamResponse:
        taken = False
        try:
            if asked.call.streamed:
                parts = dialect.stream(asked, answer, self._session.model)
            else:
                parts = iter([compact_json(dialect.whole(asked, answer, self._session.model))])
            response = await delivery.send(parts)
            self._pace.give_back()
            taken = True
            return response
        finally:
            # With `finally`, since being cancelled is one of the ways not to be delivered.
            (self._session.delivered if taken else self._session.undelivered)(answer)

    async def _refused(
        self,
        request: web.BaseRequest,
        dialect: Dialect,
        asked: Asked,
        delivery: _CallDelivery,
        error: Refused,
    ) -> web.StreamResponse:
        found = self._problem(error, dialect)
        in_stream = dialect.too_long_in_stream
        if error.kind == "context_length" and asked.call.streamed and in_stream is not None:
            return await delivery.send(in_stream(asked, found.message, self._session.model))
        if delivery.begun:
            delivery.break_off()
            raise _Gone("there is no answer")
        body = dialect.problem(found)
        return await _send_json(request, body, status=found.status)

    def _problem(self, error: Refused, dialect: Dialect) -> Problem:
        return problem_of(error, dialect, self._refusal_status)

    async def _count(
        self, request: web.BaseRequest, dialect: Dialect, asked: Asked
    ) -> web.StreamResponse:
        try:
            tokens = await self._in_turn(lambda: self._session.count_tokens(asked.call))
        except Refused as error:
            found = self._problem(error, dialect)
            return await _send_json(request, dialect.problem(found), status=found.status)
        return await _send_json(request, {"input_tokens": tokens})


class _Turned(asyncio.Protocol):
    """A connection that is one too many, or too late."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()


def _sent(request: web.BaseRequest) -> str:
    """The path as it was sent, or its beginning."""
    return tidy(request.rel_url.raw_path[:PATH_MAX_CHARS])


def _path(request: web.BaseRequest) -> str:
    """The path without `/v1`: clients add it to a base that has it, or has it not."""
    path = _sent(request)
    for _ in range(2):
        path = path.removeprefix("/v1") if path.startswith("/v1/") else path
    return path.rstrip("/") or "/"


def _head(request: web.BaseRequest) -> Head:
    given = request.headers
    hints = {name: tidy(given[name][:HINT_MAX_CHARS]) for name in HINTS if name in given}
    retries = given.get("x-stainless-retry-count", "")
    count = int(retries) if retries.isascii() and retries.isdigit() and len(retries) < 9 else 0
    return Head(_sent(request), hints, min(count, RETRY_MAX), now_s=int(time.time()))


def _models(request: web.BaseRequest, model: str) -> dict[str, object]:
    """The one model, in the shape of the API that asks."""
    if "anthropic-version" in request.headers:
        created = "2024-01-01T00:00:00Z"
        entry = {"type": "model", "id": model, "display_name": model, "created_at": created}
        return {"data": [entry], "has_more": False, "first_id": model, "last_id": model}
    listed = {"id": model, "object": "model", "created": 0, "owned_by": "hermes-queue"}
    return {"object": "list", "data": [listed]}


class _Responses:
    """The newest answers of one session, with what was said before them."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[Message, ...], int]] = {}

    def keep(self, name: str, messages: tuple[Message, ...]) -> None:
        """Keep a conversation, and drop the oldest ones; one that is too large is not kept.

        Conversations share their messages, but each is counted as if it were alone.
        """
        self._kept.pop(name, None)
        size = sum(map(_size, messages))
        if size > _RESPONSES_BYTES_MAX:
            return
        self._kept[name] = messages, size
        while len(self._kept) > _RESPONSES_MAX or self._bytes() > _RESPONSES_BYTES_MAX:
            self._kept.pop(next(iter(self._kept)))

    def _bytes(self) -> int:
        return sum(size for _, size in self._kept.values())

    def conversation(self, name: str) -> Sequence[Message] | None:
        """The conversation up to and including this answer; None if it is not kept."""
        found = self._kept.get(name)
        return None if found is None else found[0]


def _size(message: Message) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls)
    return len(message.content or "") + len(message.reasoning or "") + calls


class _RejectedRequest(Exception):
    """A request that is no call: it gets an error, and is counted."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.close = close
        """Whether the rest of the request is not read."""


class _CallConnection(web.RequestHandler):
    """One connection, with a time limit for headers. aiohttp has one for the first header alone."""

    header_s: float = 10.0
    _due: asyncio.TimerHandle | None = None
    _answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin. From now on, drained means that the last byte was handed to the system."""
        if isinstance(transport, asyncio.WriteTransport):
            with suppress(NotImplementedError):
                transport.set_write_buffer_limits(0)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Read; the first byte of a header starts the clock."""
        if data and self._due is None and not self._answering:
            self._due = self._loop.call_later(self.header_s, self.force_close)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self.request_begins()
        super().connection_lost(exc)

    def request_begins(self) -> None:
        """The header is complete: a handler has the request."""
        self._answering = True
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def request_ends(self) -> None:
        """The handler is done: what comes next is a header."""
        self._answering = False


def _size_of(request: web.BaseRequest, bounds: Bounds) -> int:
    """Bytes to set aside for a body. Raises RejectedRequest if it is not taken at all."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise _RejectedRequest(415, "a compressed body is not taken: send it as it is", close=True)
    size = request.content_length
    if size is None:
        return bounds.unannounced_bytes
    if size > bounds.body_bytes:
        raise _too_large(bounds.body_bytes)
    return size


def _too_large(most: int, fix: str = "send a shorter conversation") -> _RejectedRequest:
    return _RejectedRequest(413, f"the body has more than {most:,} bytes: {fix}", close=True)


async def _read_body(request: web.BaseRequest, most: int, bounds: Bounds) -> bytes:
    """The body, of at most `most` bytes. Raises RejectedRequest, or ConnectionError."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    body = bytearray()
    try:
        async with asyncio.timeout(bounds.body_s):
            while piece := await request.content.readany():
                body += piece
                if len(body) > most:
                    raise _too_large(most, "announce its Content-Length, or send less")
    except TimeoutError:
        raise _RejectedRequest(
            408, f"the body did not come within {bounds.body_s:g} s: send it faster", close=True
        ) from None
    except RequestPayloadError as error:
        raise _RejectedRequest(400, f"the body is broken: {error}"[:300], close=True) from None
    return bytes(body)


class _Gone(ConnectionError):
    """The client did not take its answer."""


class _CallDelivery:
    """The response to one call."""

    def __init__(
        self, request: web.BaseRequest, dialect: Dialect, asked: Asked, bounds: Bounds
    ) -> None:
        self._request = request
        self._streamed = asked.call.streamed
        self._sign = dialect.waiting if self._streamed else b" "
        self._bounds = bounds
        self._response: web.StreamResponse | None = None

    @property
    def begun(self) -> bool:
        """Whether the status 200 was sent, so that no other one can follow."""
        return self._response is not None

    async def meanwhile(self, work: asyncio.Task[T]) -> T:
        """The result of `work`; the client gets signs of life while it lasts.

        `work` is cancelled with the caller. Raises what `work` raises, and Gone.
        """
        pause_s = self._bounds.first_sign_s
        try:
            while not (await asyncio.wait((work,), timeout=pause_s))[0]:
                await self._write(self._sign)
                pause_s = self._bounds.signs_s
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        return work.result()

    async def send(self, parts: Iterable[bytes]) -> web.StreamResponse:
        """Send the whole answer. Returns when it was taken; raises Gone if it was not."""
        return await self._write(b"".join(parts), last=True)

    def break_off(self) -> None:
        """Close the connection: after a 200, the only way to say that there is no answer."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _write(self, data: bytes, *, last: bool = False) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._bounds.drain_s):
                response = self._response
                if response is None:
                    head = _STREAM if self._streamed else _JSON
                    response = self._response = web.StreamResponse(headers=head)
                    if last and not self._streamed:
                        response.content_length = len(data)
                    await response.prepare(self._request)
                if last:
                    await response.write_eof(data)
                else:
                    await response.write(data)
                    await self._request.writer.drain()
        except TimeoutError:
            self.break_off()
            raise _Gone("the client takes nothing") from None
        except ConnectionError:
            raise _Gone("the connection is closed") from None
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise _Gone("the connection is closed")
        return response


async def _send_json(
    request: web.BaseRequest, value: object, *, status: int = 200, close: bool = False
) -> web.StreamResponse:
    """Send a small JSON answer. Raises ConnectionError."""
    headers = dict(_JSON)
    if status >= 400:
        headers["x-should-retry"] = "false"  # the SDKs of OpenAI and Anthropic heed it
    response = web.Response(body=compact_json(value), status=status, headers=headers)
    if close:
        response.force_close()
    await response.prepare(request)
    await response.write_eof()
    return response
