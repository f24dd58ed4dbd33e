"""Takes requests in: the time of their headers, the size and the time of their bodies.

Whatever connects is a program in a slot: it may send slowly, too much, or nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from hermes_queue.agent.capture.bounds import Bounds


class RejectedRequest(Exception):
    """A request that is no call: it gets an error, and is counted."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.close = close
        """Whether the rest of the request is not read."""


class CallConnection(web.RequestHandler):
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


def size_of(request: web.BaseRequest, bounds: Bounds) -> int:
    """Bytes to set aside for a body. Raises RejectedRequest if it is not taken at all."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RejectedRequest(415, "a compressed body is not taken: send it as it is", close=True)
    size = request.content_length
    if size is None:
        return bounds.unannounced_bytes
    if size > bounds.body_bytes:
        raise _too_large(bounds.body_bytes)
    return size


def _too_large(most: int, fix: str = "send a shorter conversation") -> RejectedRequest:
    return RejectedRequest(413, f"the body has more than {most:,} bytes: {fix}", close=True)


async def read_body(request: web.BaseRequest, most: int, bounds: Bounds) -> bytes:
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
        raise RejectedRequest(
            408, f"the body did not come within {bounds.body_s:g} s: send it faster", close=True
        ) from None
    except RequestPayloadError as error:
        raise RejectedRequest(400, f"the body is broken: {error}"[:300], close=True) from None
    return bytes(body)
