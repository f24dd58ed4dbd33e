"""A gRPC server on one port of 127.0.0.1 that can be cut off like a dead machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections.abc import Sequence
from typing import Any

from grpclib.config import Configuration
from grpclib.server import Server

from localmodal.wire import StatusDetails, Stream

WINDOW_BYTES = 64 << 20
CLOSE_PATIENCE_S = 0.5


class Connections:
    """The connections over which calls came."""

    def __init__(self) -> None:
        self._transports: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(self, stream: Stream) -> None:
        """Remember the connection of this call."""
        self._transports.add(stream._stream._transport)  # grpclib has no way to drop one

    def abort(self) -> None:
        """Abort all of them."""
        for transport in list(self._transports):
            transport.abort()


class Listener:
    """Serves services, possibly shared with other listeners, on its own port."""

    def __init__(self, services: Sequence[Any], port: int = 0) -> None:
        """Bind the port, 0 = any free one; OSError if it is taken."""
        # Name the protocol: asyncio switches off Nagle's algorithm only for such sockets, and it
        # would cost 40 ms in each direction.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: Server | None = None
        self.services = services

    async def start(self) -> None:
        """Start answering calls."""
        self._server = Server(
            self.services,
            status_details_codec=StatusDetails(),
            config=Configuration(
                http2_connection_window_size=WINDOW_BYTES, http2_stream_window_size=WINDOW_BYTES
            ),
        )
        await self._server.start(sock=self._socket)

    def close(self) -> None:
        """Refuse new connections; existing ones stay open. Idempotent."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def closed(self) -> None:
        """After `close`, wait for a moment until running calls have ended."""
        if self._server is not None:
            # Since Python 3.12 this waits for clients to hang up; the SDK does so at its exit.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), CLOSE_PATIENCE_S)
