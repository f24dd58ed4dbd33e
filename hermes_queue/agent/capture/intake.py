"""Takes requests in: time for headers, size and time of bodies, memory that all of them may use.

Whatever connects is a program in a slot: it may send slowly, too much, or nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one session's requests."""

    connections: int = 64
    calls: int = 8
    """Calls that are being answered at once; more wait."""
    body_bytes: int = 64 * MIB
    """Of one body, and of the bodies of all calls that are open."""
    unannounced_bytes: int = 8 * MIB
    """Of a body without a Content-Length: so much is set aside for it."""
    header_s: float = 10.0
    """From the first byte of a request's header to its last one."""
    idle_s: float = 75.0
    """Of a connection without a request."""
    body_s: float = 120.0
    first_sign_s: float = 10.0
    """After so long without an answer, its status and a sign of life are sent."""
    signs_s: float = 5.0
    """Between further signs."""
    drain_s: float = 120.0
    """For the client to take an answer."""


class Rejected(Exception):
    """A request that is no call: it gets an error, and is counted."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.close = close
        """Whether the rest of the request is not read."""


class Connection(web.RequestHandler):
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
        if self._due is None and not self._answering:
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


class Memory:
    """Bytes that are set aside for bodies. Who finds too few waits, first come, first served."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[None]:
        """Hold so many bytes, which must not be more than there are, inside the block."""
        await self._take(size)
        try:
            yield
        finally:
            self._give(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(size)
            else:
                self._waiting.remove(entry)
                self._give(0)
            raise

    def _give(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, turn = self._waiting.popleft()
            self._free -= wanted
            turn.set_result(None)


def size_of(request: web.BaseRequest, bounds: Bounds) -> int:
    """Bytes to set aside for a body. Raises Rejected if it is not taken at all."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Rejected(415, "a compressed body is not taken: send it as it is", close=True)
    size = request.content_length
    if size is None:
        return bounds.unannounced_bytes
    if size > bounds.body_bytes:
        raise _too_large(bounds.body_bytes)
    return size


def _too_large(most: int, fix: str = "send a shorter conversation") -> Rejected:
    return Rejected(413, f"the body has more than {most:,} bytes: {fix}", close=True)


async def read_body(request: web.BaseRequest, most: int, bounds: Bounds) -> bytes:
    """The body, of at most `most` bytes. Raises Rejected, or ConnectionError."""
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
        raise Rejected(
            408, f"the body did not come within {bounds.body_s:g} s: send it faster", close=True
        ) from None
    except RequestPayloadError as error:
        raise Rejected(400, f"the body is broken: {error}"[:300], close=True) from None
    return bytes(body)
