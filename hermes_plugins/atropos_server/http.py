"""HTTP/1.1 for a few trusted-by-token clients, with a bound on everything a client can make us do.

Heads and bodies are small, connections few, and each phase has a time limit. A body that is not
wanted is never read. The answer knows whether its last byte has arrived at the client's host, and
whether the client tore the connection down afterwards instead of reading it.
"""

from __future__ import annotations

import asyncio
import http
import http.client
import io
import json
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

HEAD_BYTES = 16 * 1024
BODY_BYTES = 64 * 1024
CONNECTIONS = 64
_REQUEST_S = 10.0
"""From the first byte of a request to its last."""
_IDLE_S = 75.0
_ANSWER_S = 600.0
"""A slow client may take this long for a batch."""
_POLL_S = 0.005
_CONFIRMED_S = 1.0
"""A host confirms what it has received within a fifth of this, or is gone."""
_TCP_INFO = struct.Struct("B 23x I 116x I")
"""Of Linux' `struct tcp_info`: tcpi_state, tcpi_unacked and tcpi_notsent_bytes."""
_TCP_CLOSE = 7


@dataclass(frozen=True, slots=True)
class TrainerRequest:
    """One request, complete."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class TrainerAnswer:
    """One answer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    batch: object | None = None
    """The batch in the body, for `Handlers`."""


def json_answer(value: Any, status: int = 200) -> TrainerAnswer:
    """An answer of JSON."""
    return TrainerAnswer(status, json.dumps(value, separators=(",", ":")).encode())


def said(status: int, detail: str) -> TrainerAnswer:
    """A refusal in words."""
    return json_answer({"detail": detail}, status)


class RequestRefused(Exception):
    """The client gets this status and text, and the connection ends."""

    def __init__(self, status: int, text: str, path: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.path = path
        """The path asked for, if it was read."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """What a server calls."""

    answer: Callable[[TrainerRequest], Awaitable[TrainerAnswer]]
    delivered: Callable[[Any, Callable[[], bool]], Awaitable[None]]
    """The client's host has the whole batch; tells whether the connection was torn since."""
    lost: Callable[[Any], Awaitable[None]]
    """The client broke the connection of this batch, so it may not have read it."""
    refusal: Callable[[RequestRefused], TrainerAnswer]


class HttpServer:
    """Serves until `close`."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], bool] = {}
        """Connections, oldest first, and whether no complete request waits for its answer."""
        self._unconfirmed: set[asyncio.Future[None]] = set()
        """Of batches that have left this process, and may be at their client already."""

    async def listen(self, host: str, port: int) -> int:
        """Listen, and return the port.

        Raises:
            OSError: the address is not to be had.
        """
        self._server = await asyncio.start_server(self._accepted, host, port, limit=HEAD_BYTES)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Listen no more, and end all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of a connection runs in a task
        if len(self._open) >= CONNECTIONS:
            # Also one whose request is incomplete: else whoever sends slowly keeps trainers out.
            idle = next((each for each, is_idle in self._open.items() if is_idle), None)
            if idle is None:
                writer.transport.abort()
                return
            idle.cancel()
            del self._open[idle]
        self._open[task] = False
        try:
            await self._serve(task, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            logger.debug("a connection ended: %r", error)
            writer.transport.abort()  # `close` would keep what a client does not read, for ever
        except Exception:  # the service ends by it, see `Routes.failed`
            logger.exception("a request failed", extra={"action": "atropos_failed"})
        except asyncio.CancelledError:
            if self._server is not None and self._server.is_serving():
                logger.debug("a connection without a request made room for another one")
        finally:
            self._open.pop(task, None)
            writer.close()

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        batch: object | None = None
        goes_on = True
        while goes_on:
            self._open[task] = True
            try:
                async with asyncio.timeout(_IDLE_S):
                    first = await reader.read(1)
            except (ConnectionError, TimeoutError) as error:
                if batch is not None and isinstance(error, ConnectionError):
                    await self._handlers.lost(batch)
                raise
            if not first:
                return
            try:
                async with asyncio.timeout(_REQUEST_S):
                    request = await _read(first, reader)
            except RequestRefused as error:
                await _write(writer, self._handlers.refusal(error), last=True)
                return
            self._open[task] = False
            batch, goes_on = await self._exchange(request, reader, writer)

    async def _exchange(
        self, request: TrainerRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[object | None, bool]:
        """Answer one request: the batch in the answer, and whether another request may follow."""
        # A client that has read a batch may ask for the next one, on another connection, before
        # its host's confirmation of the first one was seen here.
        if self._unconfirmed:
            await asyncio.wait(set(self._unconfirmed), timeout=_CONFIRMED_S)
        # A connection that carries a batch stays open: how the client ends it tells whether it
        # has read the batch.
        answer = await self._handlers.answer(request)
        wants_end = request.headers.get("connection", "").lower() == "close"
        last = answer.status >= 400 or (wants_end and answer.batch is None)
        await _write(writer, answer, last=last)
        if answer.batch is not None:
            with self._confirming():
                await _taken(writer)
                await self._handlers.delivered(answer.batch, lambda: reader.exception() is not None)
        return answer.batch, not last

    @contextmanager
    def _confirming(self) -> Iterator[None]:
        """Other requests wait for the end of the block, within limits."""
        confirmed = asyncio.get_running_loop().create_future()
        self._unconfirmed.add(confirmed)
        try:
            yield
        finally:
            self._unconfirmed.discard(confirmed)
            confirmed.set_result(None)


async def _read(first: bytes, reader: asyncio.StreamReader) -> TrainerRequest:
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise RequestRefused(431, "the head of the request is too long") from error
    line, _, rest = head.partition(b"\r\n")
    parts = line.decode("latin-1").split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise RequestRefused(400, "this is not HTTP/1.1")
    try:
        parsed = http.client.parse_headers(io.BytesIO(rest))
    except http.client.HTTPException as error:
        raise RequestRefused(431, "too many headers") from error
    headers = {name.lower(): value for name, value in parsed.items()}
    if "transfer-encoding" in headers or len(parsed.get_all("content-length", [])) > 1:
        raise RequestRefused(411, "send the body with a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise RequestRefused(400, "Content-Length is not a number")
    method, path = parts[0], parts[1].partition("?")[0]
    if len(length) > 12 or int(length) > BODY_BYTES:
        raise RequestRefused(413, "the body is too long", path)
    return TrainerRequest(method, path, headers, await reader.readexactly(int(length)))


async def _write(writer: asyncio.StreamWriter, answer: TrainerAnswer, *, last: bool) -> None:
    """Write an answer; on return it is on its way."""
    headers = {
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        "Connection": "close" if last else "keep-alive",
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    async with asyncio.timeout(_ANSWER_S):
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
        writer.write(answer.body)
        await writer.drain()


async def _taken(writer: asyncio.StreamWriter) -> None:
    """Wait until the client's host has all that was written.

    Raises:
        ConnectionError: the client is gone.
        TimeoutError: it takes nothing any more.
    """
    async with asyncio.timeout(_ANSWER_S):
        await _emptied(writer)


async def _emptied(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    while True:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        state, *on_the_way = _TCP_INFO.unpack(info)
        # A client that gave up waiting for the answer resets the connection when it arrives, which
        # leaves nothing on the way, and the event loop reads no more of a connection after its end.
        if writer.is_closing() or state == _TCP_CLOSE:
            raise ConnectionResetError("the client is gone")
        # The receiver's host has confirmed every segment, and none waits to be sent.
        if not writer.transport.get_write_buffer_size() and not any(on_the_way):
            return
        await asyncio.sleep(_POLL_S)
