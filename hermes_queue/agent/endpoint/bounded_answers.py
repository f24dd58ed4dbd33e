"""Limits on the size of a model server's answers.

Without them, a few megabytes of compressed blanks from a server, or from whoever answers in its
place, would use up a worker's memory. Imports httpx2, so import it lazily.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx2

ACCEPT_ENCODING = "gzip, deflate"
"""Encodings that `AnswerStream` can decode."""
_STEP_BYTES = 1 << 18


class AnswerRefused(httpx2.DecodingError):
    """The answer is larger than allowed, or has an unknown encoding."""


class AnswerStream(httpx2.AsyncByteStream):
    """The decoded body of an answer, up to a limit."""

    def __init__(self, packed: httpx2.AsyncByteStream, encoding: str, max_bytes: int) -> None:
        """Wrap a body with this `Content-Encoding`; the limit holds for it as sent and decoded."""
        self._packed = packed
        self._encoding = encoding.strip().lower()
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the decoded pieces. Raises AnswerRefused: too large, or an unknown encoding."""
        packed = self._encoding not in ("", "identity")
        if packed and self._encoding not in ("gzip", "x-gzip", "deflate"):
            raise AnswerRefused(
                f"the answer is encoded as {self._encoding[:40]!r}, not as {ACCEPT_ENCODING}"
            )
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
        sent = given = 0
        async for piece in self._packed:
            sent += len(piece)
            for part in _decoded(decoder, piece) if packed else (piece,):
                given += len(part)
                self._check(given)
                yield part
            self._check(sent)
        if packed and not decoder.eof:  # the transport notices a plain body that ends early
            raise AnswerRefused("the encoded answer ends early")

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise AnswerRefused(
                f"the answer has more than {self._max_bytes} bytes "
                "(HERMES_QUEUE_MODEL_ANSWER_MAX_BYTES)"
            )

    async def aclose(self) -> None:
        """Release the connection, or close it if the body was not read to its end."""
        await self._packed.aclose()


def _decoded(decoder: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    """The contents of a piece in gzip or zlib, a bounded step at a time."""
    try:
        while True:
            part = decoder.decompress(piece, _STEP_BYTES)
            piece = decoder.unconsumed_tail
            if part:
                yield part
            if len(part) < _STEP_BYTES and not piece:
                break
    except zlib.error as error:
        raise AnswerRefused(f"the answer cannot be decoded: {error}") from None
    if decoder.unused_data:
        raise AnswerRefused("data follows the end of the encoded answer")


def bound_to(max_bytes: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A response hook for `httpx2.AsyncClient` that limits answers to `max_bytes`."""

    async def bound(response: httpx2.Response) -> None:
        encoding = response.headers.pop("content-encoding", "")
        packed = response.stream
        if isinstance(packed, httpx2.AsyncByteStream):
            response.stream = AnswerStream(packed, encoding, max_bytes)

    return bound
