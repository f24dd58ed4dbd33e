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
        if self._encoding in ("", "identity"):
            unpack = _Plain()
        elif self._encoding in ("gzip", "x-gzip", "deflate"):
            unpack = _Unpacker()
        else:
            raise AnswerRefused(
                f"the answer is encoded as {self._encoding[:40]!r}, not as {ACCEPT_ENCODING}"
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
        """Release the connection, or close it if the body was not read to its end."""
        await self._packed.aclose()


class _Plain:
    def pieces(self, piece: bytes) -> Iterator[bytes]:
        yield piece

    def finish(self) -> None:
        """Nothing to check: the transport notices a plain body that ends early."""


class _Unpacker(_Plain):
    """Decodes gzip or zlib, a bounded step at a time."""

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
            raise AnswerRefused(f"the answer cannot be decoded: {error}") from None
        if self._zlib.unused_data:
            raise AnswerRefused("data follows the end of the encoded answer")

    def finish(self) -> None:
        if not self._zlib.eof:
            raise AnswerRefused("the encoded answer ends early")


def bound_to(max_bytes: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A response hook for `httpx2.AsyncClient` that limits answers to `max_bytes`."""

    async def bound(response: httpx2.Response) -> None:
        encoding = response.headers.pop("content-encoding", "")
        packed = response.stream
        if isinstance(packed, httpx2.AsyncByteStream):
            response.stream = AnswerStream(packed, encoding, max_bytes)

    return bound
