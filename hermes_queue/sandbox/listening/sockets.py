"""A `Listening` over a socket that listens inside a slot, for backends that can get one."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import LOOPBACK, MAX_CONNECTIONS
from hermes_queue.sandbox.listening.relay_process import Rate, owner_of

logger = logging.getLogger(__name__)

BACKLOG = 128
PAUSE_S = 1.0
"""Before the next try to accept a connection, after this process had no descriptor for it."""


class SocketListening:
    """See `Listening`. Owns the socket, which keeps the slot's network namespace alive."""

    def __init__(
        self,
        listener: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        uid: int | None = None,
    ) -> None:
        """`uid`: who may connect, as this process sees it; others are refused. None = everybody."""
        listener.setblocking(False)
        self.host = LOOPBACK
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._factory = factory
        self._uid = uid
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[SandboxError] = self._loop.create_future()
        self._serving: set[asyncio.Task[None]] = set()
        self._rate = Rate()
        self._pause: asyncio.TimerHandle | None = None
        self._is_accepting = False
        self._accept_again()

    def _accept_again(self) -> None:
        self._pause = None
        if not self.lost.done() and not self._is_accepting:
            self._is_accepting = True
            self._loop.add_reader(self._listener, self._accept)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listener)

    def _accept_later(self, seconds: float) -> None:
        self._stop_accepting()
        self._pause = self._loop.call_later(seconds, self._accept_again)

    def _accept(self) -> None:
        if len(self._serving) >= MAX_CONNECTIONS:
            self._stop_accepting()
            return
        if wait_s := self._rate.wait_s(self._loop.time()):
            self._accept_later(wait_s)
            return
        try:
            connection, peer = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.warning("cannot accept: %s", error, extra={"action": "accept_failed"})
            self._accept_later(PAUSE_S)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection, peer))
        self._serving.add(task)
        task.add_done_callback(lambda task: self._served(task, connection))

    def _served(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        connection.close()  # the task may have been cancelled before it began
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()):
            message, extra = "a connection from a slot failed", {"action": "connection_failed"}
            logger.error(message, exc_info=error, extra=extra)
        if self._pause is None:
            self._accept_again()

    async def _serve(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        """Serve one connection to its end; reset it when cancelled."""
        if self._uid is not None:
            owner = await asyncio.to_thread(owner_of, peer, connection.getsockname())
            if owner != self._uid:
                return
        watched = _watched(self._factory())
        try:
            await self._loop.connect_accepted_socket(lambda: watched, connection)
            await asyncio.shield(watched.ended)
        finally:
            if watched.transport is not None:
                watched.transport.abort()
                await unbroken(watched.ended)

    async def close(self) -> None:
        """See `Listening`."""
        await unbroken(self._end(None))

    async def lose(self, error: SandboxError) -> None:
        """End it because of `error`, unless it has ended."""
        await unbroken(self._end(error))

    async def _end(self, error: SandboxError | None) -> None:
        if not self.lost.done():
            if error is None:
                self.lost.cancel()
            else:
                self.lost.set_result(error)
            self._stop_accepting()
            if self._pause is not None:
                self._pause.cancel()
            self._listener.close()
            for task in self._serving:
                task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


class _Watched(asyncio.Protocol):
    """Passes everything to `inner`, and sees the end."""

    def __init__(self, inner: asyncio.BaseProtocol) -> None:
        self.inner = inner
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self.inner.connection_lost(exc)
        finally:
            if not self.ended.done():
                self.ended.set_result(None)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        cast("asyncio.Protocol", self.inner).data_received(data)

    def eof_received(self) -> bool | None:
        return cast("asyncio.Protocol", self.inner).eof_received()


class _WatchedBuffered(_Watched, asyncio.BufferedProtocol):
    """The same for protocols that bring their own buffer."""

    def get_buffer(self, sizehint: int) -> bytearray:
        return cast("asyncio.BufferedProtocol", self.inner).get_buffer(sizehint)  # type: ignore[return-value]

    def buffer_updated(self, nbytes: int) -> None:
        cast("asyncio.BufferedProtocol", self.inner).buffer_updated(nbytes)


def _watched(protocol: asyncio.BaseProtocol) -> _Watched:
    buffered = isinstance(protocol, asyncio.BufferedProtocol)
    return _WatchedBuffered(protocol) if buffered else _Watched(protocol)


def listen_on_loopback() -> socket.socket:
    """A socket that listens on this process's own loopback interface. Raises OSError."""
    listener = socket.socket()
    try:
        listener.bind((LOOPBACK, 0))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
