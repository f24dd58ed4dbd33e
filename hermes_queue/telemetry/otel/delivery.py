"""A bounded queue of encoded requests, and the thread that sends them.

Whatever the collector does, adding never waits and the queue never holds more than its bytes: what
has no room is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from hermes_queue.telemetry.otel.transport import CollectorTransport, NotDelivered

logger = logging.getLogger(__name__)

REQUEST_BYTES = 1 << 20
"""Requests are joined up to this size."""
_PATIENCE_S = 60.0
"""For so long a request is tried again."""
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
_WARNING_S = 60.0
"""Time between two warnings that nothing is taken."""
_LAST_JOIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a request."""

    signal: str
    body: bytes
    count: int
    """Spans, log lines or metrics in it."""


class PartDelivery:
    """Sends parts in the background. Thread-safe."""

    def __init__(
        self,
        transport: CollectorTransport,
        *,
        most_bytes: int,
        interval_s: float,
        on_drop: Callable[[str, int], None] = lambda signal, count: None,
    ) -> None:
        """Start the thread.

        Args:
            transport: to the collector; closed with this.
            most_bytes: of all that waits.
            interval_s: between two rounds of sending.
            on_drop: called with the signal and the number of what is dropped; never waits.
        """
        self.dropped: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._transport = transport
        self._most_bytes = most_bytes
        self._interval_s = interval_s
        self._on_drop = on_drop
        self._parts: deque[Part] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._ended = False
        """Whether nothing is taken any more."""
        self._end = 0.0
        self._warned = float("-inf")
        self._thread = threading.Thread(target=self._run, name="otel-send", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait, those under way included."""
        return self._bytes

    def add(self, part: Part) -> bool:
        """Queue a part; False if it was dropped instead."""
        with self._lock:
            fits = not self._ended and self._bytes + len(part.body) <= self._most_bytes
            if fits:
                self._parts.append(part)
                self._bytes += len(part.body)
        if not fits:
            self.note_drop(part.signal, part.count)
        return fits

    def close(self, timeout_s: float) -> None:
        """Send what waits for at most `timeout_s`; drop the rest, and end. Idempotent."""
        self._end = time.monotonic() + timeout_s
        self._closing.set()
        self._thread.join(timeout_s)
        self._transport.close()
        self._thread.join(_LAST_JOIN_S)
        with self._lock:
            left, self._bytes, self._ended = [*self._parts], 0, True
            self._parts.clear()
        for part in left:
            self.note_drop(part.signal, part.count)

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._round()
        self._round()

    def _round(self) -> None:
        """Send all that waits now."""
        while parts := self._taken():
            request = b"".join(part.body for part in parts)
            count, signal = sum(part.count for part in parts), parts[0].signal
            try:
                delivered = self._sent(signal, request)
            finally:
                with self._lock:
                    self._bytes = max(0, self._bytes - len(request))
            if delivered:
                self.sent[signal] += count
            else:
                self.note_drop(signal, count)

    def _taken(self) -> list[Part]:
        """The next parts of one signal, as many as make up a request."""
        with self._lock:
            if not self._parts:
                return []
            taken = [self._parts.popleft()]
            size, left = len(taken[0].body), deque[Part]()
            for part in self._parts:
                if part.signal == taken[0].signal and size + len(part.body) <= REQUEST_BYTES:
                    taken.append(part)
                    size += len(part.body)
                else:
                    left.append(part)
            self._parts = left
            return taken

    def _sent(self, signal: str, request: bytes) -> bool:
        """Send one request, again while that may help; whether the collector took it."""
        until, pause_s = time.monotonic() + _PATIENCE_S, _PAUSE_S
        while True:
            try:
                self._transport.post(signal, request)
                return True
            except NotDelivered as refused:
                reason, again = str(refused), refused.again
            except Exception as error:  # noqa: BLE001 - the thread must live
                reason, again = type(error).__name__, False
            self._warn(signal, reason)
            if self._closing.is_set():
                until = min(until, self._end)
            if not again or time.monotonic() + pause_s > until:
                return False
            # A pause ends when we are to end; then there is one more try, and no further one.
            if self._closing.wait(pause_s):
                until = min(until, self._end)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def note_drop(self, signal: str, count: int) -> None:
        """Count what had to be dropped before it got here."""
        self.dropped[signal] += count
        self._on_drop(signal, count)

    def _warn(self, signal: str, reason: str) -> None:
        now = time.monotonic()
        if now - self._warned < _WARNING_S:
            return
        self._warned = now
        where, dropped = self._transport.place, sum(self.dropped.values())
        text = "the collector at %s does not take %s: %s; %d spans, lines and metrics dropped"
        extra = {"action": "otel_undelivered"}
        logger.warning(text, where, signal, reason, dropped, extra=extra)
