"""The socket, and the server behind it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.guard import COMMON, DATA_POLICY
from hermes_queue.errors import EXIT_INTERRUPTED, ConfigurationError

CONNECTIONS_MAX = 512
HEADERS_S = 10.0
"""A request's headers must have come by then."""
BODY_S = 15.0
"""And its body so long after them, whether anybody reads it or not. The application waits less."""
STALLED_S = 30.0
"""A reader has this long for the next `STALLED_BYTES` of an answer."""
STALLED_BYTES = 16 << 10
ENDING_S = 2
"""Requests that still run when the server ends have this long."""
KEEP_ALIVE_S = 30
_BACKLOG = 128


def address_of(host: str) -> str:
    """The address that a host name stands for.

    Raises:
        ConfigurationError: it is not known.
    """
    return str(_resolved(host, 0)[1][0])


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(f"--host {host}: {error.strerror or error}") from error
    return family, address


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address.

    Raises:
        ConfigurationError: the address is not one of this machine, or the port is taken.
    """
    family, address = _resolved(host, port)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise ConfigurationError(_why_not(host, port, error)) from error
    return bound


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use, perhaps by another viewer; "
            "choose another one: --port 0 takes any free one"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine; choose another --host"
    if error.errno == errno.EACCES:
        return f"port {port} needs root; choose one above 1023: --port 9820"
    return f"{host}:{port}: {error.strerror}"


def listen_unix(path: Path) -> socket.socket:
    """A unix socket that only its owner may use. A dead one at its place is replaced.

    Raises:
        ConfigurationError: something else is there, or a server that lives.
    """
    _remove_dead(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        bound.bind(os.fspath(path))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise ConfigurationError(
            f"--unix-socket {path}: {error.strerror or error}; "
            "choose a short path in a directory of yours"
        ) from error
    finally:
        os.umask(before)
    return bound


def _remove_dead(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigurationError(f"--unix-socket {path}: there is a file of that name")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                path.unlink()
            return
        except OSError as error:
            raise ConfigurationError(f"--unix-socket {path}: {error.strerror or error}") from error
    raise ConfigurationError(f"--unix-socket {path}: another server listens there")


def numeric(bound: socket.socket) -> tuple[str, int]:
    """Address and port of a socket; ("", 0) of a unix socket."""
    if bound.family == socket.AF_UNIX:
        return "", 0
    address = bound.getsockname()
    return str(address[0]), int(address[1])


class PageServer(uvicorn.Server):
    """Ends within two seconds of a signal, and then returns."""

    def __init__(self, app: ASGIApp, ending: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_Protocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="error",  # its warnings are what anybody may write into a log
                server_header=False,
                proxy_headers=False,  # nobody else may say where a request comes from
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=ENDING_S,
                h11_max_incomplete_event_size=32 << 10,
            )
        )
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; called by a signal. A second one ends the process, whatever still runs."""
        if self.should_exit:
            os._exit(EXIT_INTERRUPTED)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams, then everything else."""
        self._ending()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGTERM and SIGINT, and return instead of sending them again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Protocol(H11Protocol):
    """uvicorn's own, but for peers who take their time, and for what it refuses itself."""

    _late: asyncio.TimerHandle | None = None
    _awaited: object = None
    """The state in which the sender is late."""
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) <= CONNECTIONS_MAX or self._take_place():
            self._watch()
        else:
            transport.abort()

    def _take_place(self) -> bool:
        """Close a connection on which nothing is asked: whoever holds many shuts nobody out."""
        others = (each for each in self.connections if isinstance(each, _Protocol))
        idle = next((each for each in others if each is not self and each.is_idle), None)
        if idle:
            idle.transport.abort()
        return idle is not None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return not self.transport.is_closing() and (
            self.cycle is None or self.cycle.response_complete
        )

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._stalled):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """What was sent is not read. A stream would wait for ever, and so would the poller."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        if self._stalled:
            self._stalled.cancel()
        super().resume_writing()

    def _wait_for_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALLED_S, self._check_reader, left)

    def _check_reader(self, before: int) -> None:
        if self.transport.get_write_buffer_size() > before - STALLED_BYTES:
            self.transport.abort()
        else:
            self._wait_for_reader()

    def _watch(self) -> None:
        """A request that began to come must have all its headers in time, and then all its body.

        Refused requests, too: their connections count among those that there may be.
        """
        state = self.conn.their_state
        if state is self._awaited:
            return
        if self._late:
            self._late.cancel()
        seconds = {h11.IDLE: HEADERS_S, h11.SEND_BODY: BODY_S}.get(state)
        self._awaited = state if seconds else None
        self._late = self.loop.call_later(seconds, self._close_late) if seconds else None

    def _close_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # it has been answered already, or is being answered
            return
        refusal = Refusal(400, "not a request that this server understands")
        said = {
            **COMMON,
            "Content-Security-Policy": DATA_POLICY,
            "Content-Type": "application/json",
            "Cache-Control": "no-store",
            "Connection": "close",
        }
        body = refusal.body()
        headers = [(name.lower().encode(), value.encode()) for name, value in said.items()]
        headers.append((b"content-length", str(len(body)).encode()))
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body)):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
