"""Sends an answer: keeps the client waiting until there is one, and knows whether it was taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeVar

from aiohttp import web

from hermes_queue.agent.capture.bounds import Bounds
from hermes_queue.agent.capture.dialects.base import Asked, Dialect, compact_json

T = TypeVar("T")
_JSON = {"Content-Type": "application/json"}
_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


class Gone(ConnectionError):
    """The client did not take its answer."""


class CallDelivery:
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
            raise Gone("the client takes nothing") from None
        except ConnectionError:
            raise Gone("the connection is closed") from None
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise Gone("the connection is closed")
        return response


async def send_json(
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
