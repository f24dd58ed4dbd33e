"""HTTP requests to a collector: bounded in time, and of the answer only its head is read."""

from __future__ import annotations

import base64
import gzip
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

_RETRIED = frozenset({408, 429, 502, 503, 504})
"""Besides no answer at all: what the protocol says to send again."""


class NotDelivered(Exception):
    """The collector did not take a request; `again` says whether it may the next time."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


class CollectorTransport:
    """Requests to one collector, from one thread, each over a connection of its own."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], timeout_s: float) -> None:
        """Prepare it; nothing is connected.

        Args:
            endpoint: URL to which `/v1/traces` and the like are added; may have credentials.
            headers: of each request.
            timeout_s: for a whole request.
        """
        url = urlsplit(endpoint)
        self._host, self._tls = url.hostname or "", url.scheme == "https"
        self._port = url.port or (443 if self._tls else 80)
        self._path, self._query = url.path.rstrip("/"), f"?{url.query}" if url.query else ""
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        if url.username is not None:
            pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._headers |= headers
        self._context = ssl.create_default_context() if self._tls else None
        self._lock = threading.Lock()
        self._connection: _CutConnection | None = None
        self._is_closed = False

    @property
    def place(self) -> str:
        """The collector's host and port, for people; nothing secret is in it."""
        return f"{self._host}:{self._port}"

    def post(self, signal: str, body: bytes) -> None:
        """Deliver one request.

        Raises:
            NotDelivered: it was refused, or there was no answer in time.
        """
        connection = self._opened()
        # A socket's own limit is for each operation: a server that sends a byte a second keeps it.
        timer = threading.Timer(self._timeout_s, connection.cut)
        timer.daemon = True
        timer.start()
        try:
            path = f"{self._path}/v1/{signal}{self._query}"
            connection.request("POST", path, gzip.compress(body, 1), self._headers)
            status = connection.getresponse().status  # nothing in a body is needed
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotDelivered(type(error).__name__, again=True) from None
        finally:
            timer.cancel()
            self._end(connection)
        if not 200 <= status < 300:
            raise NotDelivered(f"HTTP {status}", again=status in _RETRIED)

    def close(self) -> None:
        """Break off a request that is under way, and refuse further ones. Thread-safe."""
        with self._lock:
            self._is_closed = True
            connection = self._connection
        if connection is not None:
            connection.cut()

    def _opened(self) -> _CutConnection:
        place, timeout_s = (self._host, self._port), self._timeout_s
        made = _CutConnection(*place, timeout=timeout_s)
        if self._context:
            made = _CutTlsConnection(*place, timeout=timeout_s, context=self._context)
        with self._lock:
            if self._is_closed:
                raise NotDelivered("closed", again=False)
            self._connection = made
        return made

    def _end(self, connection: _CutConnection) -> None:
        with self._lock:
            self._connection = None
        connection.close()


class _CutConnection(http.client.HTTPConnection):
    """A connection that another thread can end for good, be it open, opening or not yet begun."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._cut_lock = threading.Lock()
        self._is_cut = False
        self._same: socket.socket | None = None
        """The connection once more: a handshake takes the first socket's descriptor away."""

    def connect(self) -> None:
        """Connect, for TLS without its handshake.

        Raises:
            OSError: nobody answers, or the connection was cut meanwhile.
        """
        super().connect()
        with self._cut_lock:
            if self._is_cut:
                raise TimeoutError("cut while it was opened")
            self._same = self.sock.dup()

    def cut(self) -> None:
        """End both directions, whichever thread waits for them; it cannot be opened again."""
        with self._cut_lock:
            self._is_cut = True
            if self._same is not None:
                with suppress(OSError):
                    self._same.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        super().close()
        with self._cut_lock:
            if self._same is not None:
                self._same.close()
            self._same = None


class _CutTlsConnection(http.client.HTTPSConnection, _CutConnection):
    """The same with TLS, whose handshake begins after `_CutConnection.connect`."""
