"""Answers of model servers, bounded.

A server, or whoever answers in its place, decides what it sends; a few megabytes of compressed
blanks would otherwise take all memory of a worker. Imports httpx2, hence imported when needed.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx2

ACCEPT_ENCODING = "gzip, deflate"
"""What `AnswerStream` unpacks."""
_STEP_BYTES = 1 << 18


class AnswerRefused(httpx2.DecodingError):
    """The answer is larger than allowed, or packed in a way that is not understood."""


class AnswerStream(httpx2.AsyncByteStream):
    """The unpacked body of an answer, up to a bound."""

    def __init__(self, packed: httpx2.AsyncByteStream, encoding: str, max_bytes: int) -> None:
        """Wrap the body as it comes over the wire.

        Args:
            packed: the body.
            encoding: what its header `Content-Encoding` says.
            max_bytes: of the body, packed and unpacked.
        """
        self._packed = packed
        self._encoding = encoding.strip().lower()
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces.

        Raises:
            AnswerRefused: too large, or of an unknown encoding; what was read is thrown away.
        """
        if self._encoding in ("", "identity"):
            unpack = _Plain()
        elif self._encoding in ("gzip", "x-gzip", "deflate"):
            unpack = _Unpacker()
        else:
            raise AnswerRefused(
                f"the answer is packed as {self._encoding[:40]!r}; {ACCEPT_ENCODING} was asked for"
            )
        sent = given = 0
        async for piece in self._packed:
            sent += len(piece)
            for part in unpack.pieces(piece):
                given += len(part)
                self._check(given)
                yield part
            self._check(sent)
        unpack.finish()

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise AnswerRefused(
                f"the answer has more than {self._max_bytes} bytes "
                "(HERMES_QUEUE_MODEL_ANSWER_MAX_BYTES)"
            )

    async def aclose(self) -> None:
        """Give the connection back, or end it where the body was not read to its end."""
        await self._packed.aclose()


class _Plain:
    def pieces(self, piece: bytes) -> Iterator[bytes]:
        yield piece

    def finish(self) -> None:
        """Whether a plain body is whole is the transport's to say."""


class _Unpacker(_Plain):
    """gzip or zlib, a bounded step at a time."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def pieces(self, piece: bytes) -> Iterator[bytes]:
        try:
            while True:
                part = self._zlib.decompress(piece, _STEP_BYTES)
                piece = self._zlib.unconsumed_tail
                if part:
                    yield part
                if len(part) < _STEP_BYTES and not piece:
                    break
        except zlib.error as error:
            raise AnswerRefused(f"the answer cannot be unpacked: {error}") from None
        if self._zlib.unused_data:
            raise AnswerRefused("something follows the end of the packed answer")

    def finish(self) -> None:
        if not self._zlib.eof:
            raise AnswerRefused("the packed answer ends early")


def bound_to(max_bytes: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A response hook of an `httpx2.AsyncClient`: no answer is unpacked beyond `max_bytes`."""

    async def bound(response: httpx2.Response) -> None:
        encoding = response.headers.pop("content-encoding", "")
        packed = response.stream
        if isinstance(packed, httpx2.AsyncByteStream):
            response.stream = AnswerStream(packed, encoding, max_bytes)

    return bound
