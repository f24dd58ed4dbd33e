"""The worker's end of a connection that frames carry, see `relay_process`.

A transport of our own instead of a pair of sockets: what lies in their buffers would count as
written, and here only what the kernel of the sandbox has taken for the program does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from hermes_queue.sandbox.base import LOOPBACK
from hermes_queue.sandbox.listening.relay_process import (
    CLOSE,
    COUNT,
    CREDIT,
    DATA,
    END,
    MAX_PAYLOAD,
    RESET,
    WINDOW,
    frame,
)

T = TypeVar("T")

HIGH_WATER_BYTES = 64 << 10
CREDIT_BYTES = WINDOW // 4
"""Received bytes that are credited together."""


class RelayedTransport(asyncio.Transport):
    """See `asyncio.Transport`; `get_write_buffer_size` as `SandboxBackend.listen` has it."""

    def __init__(self, number: int, wake: Callable[[RelayedTransport], None]) -> None:
        """`wake` is called whenever `frames` may have more."""
        super().__init__({"peername": (LOOPBACK, 0), "sockname": (LOOPBACK, 0)})
        self.number = number
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BaseProtocol = asyncio.BaseProtocol()
        self._buffer = bytearray()
        """Written, not sent."""
        self._under_way = 0
        """Bytes sent that the program's kernel has not taken."""
        self._held = bytearray()
        """Received while reading is paused."""
        self._window = WINDOW
        """Bytes that may still be received."""
        self._used = 0
        """Bytes the protocol took that were not credited."""
        self._is_paused = self._asks_to_wait = False
        self._has_ended = self._was_eof_given = False
        """Of the program's direction: received, passed on."""
        self._eof = self._closing = self._aborted = self._is_over = False
        self._last_words: set[int] = set()
        """Kinds of frames that are sent once, and were."""
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    # --- what the relay sends ---------------------------------------------------------

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        """Begin."""
        self._protocol = protocol
        self._call(protocol.connection_made, self)

    def received(self, data: bytes) -> None:
        """The program has sent this. Raises ValueError: more than it may."""
        self._window -= len(data)
        if self._window < 0 or self._has_ended:
            raise ValueError("data that was not allowed")
        if not self.is_closing():
            self._held += data
            self._deliver()

    def ended(self) -> None:
        """The program sends no more."""
        self._has_ended = True
        self._deliver()

    def credited(self, count: int) -> None:
        """The program's kernel has taken this number of bytes. Raises ValueError: never sent."""
        if count > self._under_way:
            raise ValueError("a credit for more than was sent")
        self._under_way -= count
        self._wake(self)
        if self._is_over:
            return
        if self._asks_to_wait and self.get_write_buffer_size() <= self._low:
            self._asks_to_wait = False
            self._call(self._protocol.resume_writing)

    def lost(self, error: Exception | None) -> None:
        """The connection is over; both sides have ended their directions, or there is an error."""
        if not self._is_over:
            self._is_over = True
            self._buffer.clear()
            self._held.clear()
            self._loop.call_soon(self._protocol.connection_lost, error)

    def _deliver(self) -> None:
        """Pass on what was received."""
        if self._is_paused or self.is_closing():
            return
        if self._held:
            data = bytes(self._held)
            self._held.clear()
            self._used += len(data)
            self._feed(data)
            if self._used >= CREDIT_BYTES:
                self._wake(self)
        if self._has_ended and not self._was_eof_given and not self._is_paused and not self._held:
            self._was_eof_given = True
            if isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol):
                if not self._call(self._protocol.eof_received):
                    self.close()

    def _feed(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.Protocol):
            self._call(self._protocol.data_received, data)
        elif isinstance(self._protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view and not self._is_over:
                buffer = memoryview(self._call(self._protocol.get_buffer, len(view)) or b"")
                count = min(len(buffer), len(view))
                if not count:
                    self.abort()
                    return
                buffer[:count] = view[:count]
                self._call(self._protocol.buffer_updated, count)
                view = view[count:]

    def _call(self, method: Callable[..., T], *arguments: object) -> T | None:
        """Call the protocol; an error that it raises ends this connection and nothing else."""
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001 - as asyncio's own transports do
            message = {
                "message": "a protocol failed",
                "exception": error,
                "protocol": self._protocol,
            }
            self._loop.call_exception_handler(message)
            self.abort()
            return None

    # --- what the relay is sent -------------------------------------------------------

    def frames(self) -> bytes:
        """What may be sent now, about `MAX_PAYLOAD` bytes at most; empty = nothing."""
        number = self.number
        if self._aborted:
            return self._once(RESET)
        if self._is_over:
            return b""
        found = b""
        if self._used >= CREDIT_BYTES:
            found = frame(number, CREDIT, COUNT.pack(self._used))
            self._window += self._used
            self._used = 0
        if size := min(len(self._buffer), MAX_PAYLOAD, WINDOW - self._under_way):
            found += frame(number, DATA, bytes(self._buffer[:size]))
            del self._buffer[:size]
            self._under_way += size
        if not self._buffer and self._closing:
            found += self._once(CLOSE)
        elif not self._buffer and self._eof:
            found += self._once(END)
        return found

    def _once(self, kind: int) -> bytes:
        if kind in self._last_words:
            return b""
        self._last_words.add(kind)
        return frame(self.number, kind)

    # --- for the protocol -------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.WriteTransport`."""
        if self._eof:
            raise RuntimeError("cannot write after write_eof")
        if not data or self.is_closing():
            return
        self._buffer += data
        self._wake(self)
        if not self._asks_to_wait and self.get_write_buffer_size() > self._high:
            self._asks_to_wait = True
            self._call(self._protocol.pause_writing)

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return True

    def write_eof(self) -> None:
        """See `asyncio.WriteTransport`."""
        if not self.is_closing():
            self._eof = True
            self._wake(self)

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        if not self.is_closing():
            self._closing = True
            self._held.clear()
            self._wake(self)

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        if not self._is_over:
            self._aborted = True
            self.lost(None)
            self._wake(self)

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._closing or self._is_over

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return not self._is_paused and not self.is_closing()

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`. Raises ValueError."""
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        low = high // 4 if low is None else low
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See `asyncio.WriteTransport`."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return len(self._buffer) + self._under_way

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See `asyncio.BaseTransport`."""
        return self._protocol
