"""The HTTP proxy through which a build of an asset reaches package indexes, and nothing else.

`CONNECT` for https, `GET` and `HEAD` for http. Requests of a build are hostile: all of them are
limited in size, number and time. Names are resolved here, and the connection goes to an address
that was checked.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import socket
import ssl
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.builds.hosts import (
    PORTS,
    BuildHosts,
    HostRefused,
    OuterProxy,
    Scheme,
    normal_host,
)

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
"""Per build, at once."""
MAX_HEAD_BYTES = 16 << 10
HEAD_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 300.0
"""Without a byte in either direction."""
MOST_REFUSALS = 10
"""Number of refusals to report."""
CHUNK_BYTES = 64 << 10
ACCEPT_INTERVAL_S = 0.005
"""Between connections of one build, which share the worker's event loop with its trajectories."""
ACCEPT_PAUSE_S = 1.0
"""After a failed accept, e.g. because the worker is out of descriptors."""
_TARGET = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
_FIELD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*")
_NOT_PASSED_ON = frozenset(
    "connection content-length expect host keep-alive te trailer transfer-encoding upgrade".split()
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Malformed(Exception):
    """An unsupported or malformed request; the text goes into the answer."""


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request of a build to the proxy."""

    scheme: Scheme
    host: str
    port: int
    method: str
    path: str
    """For http; empty for a tunnel."""
    fields: tuple[str, ...]
    """Header lines to pass on; none for a tunnel."""

    def head(self, outer: OuterProxy | None) -> bytes:
        """The head to send to the next server: an outer proxy, or the host of an http request."""
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        if self.scheme == "https":
            lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        else:
            target = f"http://{place}{self.path}" if outer else self.path
            lines = [f"{self.method} {target} HTTP/1.1", f"Host: {place}"]
            lines += [*self.fields, "Connection: close"]
        if outer and outer.credentials is not None:
            token = base64.b64encode(outer.credentials.encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {token}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def parse(head: bytes) -> ProxyRequest:
    """The request in a head that ends with an empty line. Raises Malformed: we do not serve it."""
    line, *fields = head.decode("latin-1")[: -len("\r\n\r\n")].split("\r\n")
    if any(not _FIELD.fullmatch(text) for text in fields):
        raise Malformed("400 Malformed header")
    match line.split(" "):
        case ["CONNECT", target, "HTTP/1.0" | "HTTP/1.1"]:
            found = _TARGET.fullmatch(target)
            if found is None:
                raise Malformed("400 CONNECT needs host:port")
            return ProxyRequest("https", normal_host(found[1]), _port(found[2]), "CONNECT", "", ())
        case ["GET" | "HEAD" as method, url, "HTTP/1.0" | "HTTP/1.1"]:
            return _plain(method, url, fields)
    raise Malformed("405 Only CONNECT, GET and HEAD")


def _plain(method: str, url: str, fields: list[str]) -> ProxyRequest:
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    authority = authority.rpartition("@")[2]
    place = authority if re.search(r":[0-9]+$", authority) else f"{authority}:{PORTS['http']}"
    found = _TARGET.fullmatch(place)
    if scheme.lower() != "http" or found is None or not re.fullmatch(r"[!-~]*", path):
        raise Malformed("400 Not an http:// URL")
    kept = [
        text
        for text in fields
        if (name := text.partition(":")[0].lower()) not in _NOT_PASSED_ON
        and not name.startswith("proxy-")
    ]
    return ProxyRequest(
        "http", normal_host(found[1]), _port(found[2]), method, f"/{path}", tuple(kept)
    )


def _port(text: str) -> int:
    if not 0 < int(text) < 65536:
        raise Malformed("400 No such port")
    return int(text)


class BuildProxy:
    """Serves one build from `serve` to `close`. Belongs to one event loop."""

    def __init__(self, hosts: BuildHosts) -> None:
        self.refusals: dict[str, None] = {}
        """Reasons for which connections were refused, for the operator; at most `MOST_REFUSALS`."""
        self._hosts = hosts
        self._listener: socket.socket | None = None
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, listener: socket.socket) -> None:
        """Answer connections to `listener`, which is ours from now on."""
        listener.setblocking(False)
        self._listener = listener
        self._start(self._accept_all(listener))

    async def close(self) -> None:
        """End all connections. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept_all(self, listener: socket.socket) -> None:
        """Accept connections while there is room; the others wait in the kernel's queue."""
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                near, _ = await loop.sock_accept(listener)
            except OSError as error:
                self._places.release()
                logger.warning("build proxy: %s", error, extra={"action": "build_proxy_failed"})
                await asyncio.sleep(ACCEPT_PAUSE_S)
            else:
                self._start(self._serve_one(near)).add_done_callback(partial(_close, near))
                await asyncio.sleep(ACCEPT_INTERVAL_S)

    def connection(self) -> asyncio.Protocol:
        """Serve a connection that comes with a transport of its own, in place of `serve`."""
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        return asyncio.StreamReaderProtocol(
            reader, lambda near, writer: self._start(self._serve_streams(near, writer)) and None
        )

    async def _serve_one(self, near: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=near, limit=MAX_HEAD_BYTES)
            await self._serve_streams(reader, writer)
        except OSError:
            pass
        finally:
            self._places.release()

    async def _serve_streams(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await self._answer(reader, writer)
            writer.close()
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # TimeoutError is an OSError
            pass  # One of the two has gone, or was silent for too long.
        except Exception:
            logger.exception(
                "failed to serve a build's connection", extra={"action": "build_proxy_failed"}
            )
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                request = parse(await reader.readuntil(b"\r\n\r\n"))
            self._hosts.check(request.scheme, request.host, request.port)
            far = await self._open(request)
        except Malformed as error:
            return await _refuse(writer, str(error))
        except HostRefused as error:
            if len(self.refusals) < MOST_REFUSALS:
                self.refusals[str(error)] = None
            return await _refuse(writer, "403 Not a package index of this worker")
        except EnvInfraError as error:
            self.refusals[str(error)] = None
            return await _refuse(writer, "502 The proxy of this worker cannot be used")
        except OSError as error:
            why = re.sub(r"[^ -~]", "?", str(error)) or type(error).__name__
            return await _refuse(writer, f"502 No connection: {why[:200]}")
        try:
            await _relay((reader, writer), far, one_way=request.scheme == "http")
        finally:
            far[1].transport.abort()

    async def _open(self, request: ProxyRequest) -> Streams:
        """Open the connection that carries the answer, or for a tunnel its far end.

        Raises HostRefused, or OSError if there is no connection.
        """
        scheme, host, port = request.scheme, request.host, request.port
        outer = self._hosts.outer_proxy(scheme, host, port)
        if outer:
            context = ssl.create_default_context() if outer.scheme == "https" else None
            far = await _connected(outer.host, outer.port, context)
        else:
            far = await _first(await self._hosts.addresses(scheme, host, port), port)
        try:
            if outer or scheme == "http":
                far[1].write(request.head(outer))
            if outer and scheme == "https":
                await _expect_tunnel(far[0])
        except BaseException:
            far[1].transport.abort()
            raise
        return far


def _close(near: socket.socket, _: asyncio.Task[None]) -> None:
    """Close the socket, also of a task that was cancelled before it began."""
    near.close()


async def _first(addresses: Sequence[str], port: int) -> Streams:
    """A connection to the first address that answers. Raises OSError."""
    problem = OSError("no address")
    for address in addresses:
        try:
            return await _connected(address, port)
        except OSError as error:
            problem = error
    raise problem


async def _connected(host: str, port: int, context: ssl.SSLContext | None = None) -> Streams:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await asyncio.open_connection(host, port, ssl=context, limit=MAX_HEAD_BYTES)
    except TimeoutError as error:
        raise OSError(f"{host} did not answer within {CONNECT_TIMEOUT_S:g} s") from error


async def _expect_tunnel(reader: asyncio.StreamReader) -> None:
    """Read an outer proxy's answer to CONNECT. Raises OSError if it refuses."""
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except (EOFError, asyncio.LimitOverrunError, TimeoutError) as error:
        raise OSError("the worker's own proxy did not answer") from error
    status = head.split(b"\r\n")[0].decode("latin-1")
    if not re.match(r"HTTP/1\.[01] 2[0-9][0-9]\b", status):
        raise OSError(f"the worker's own proxy answers {status[:100]!r}")


async def _relay(near: Streams, far: Streams, *, one_way: bool) -> None:
    """Pass bytes on until the far end is done, or both sides are silent for too long.

    An http request has no body and is the only one, so nothing more is sent.
    """
    loop = asyncio.get_running_loop()
    outward: asyncio.Task[None] | None = None
    async with asyncio.timeout(IDLE_TIMEOUT_S) as idle:

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(CHUNK_BYTES):
                idle.reschedule(loop.time() + IDLE_TIMEOUT_S)
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

        try:
            if not one_way:
                near[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                outward = asyncio.create_task(pump(near[0], far[1]))
            await pump(far[0], near[1])
        finally:
            if outward is not None:
                outward.cancel()
                await asyncio.gather(outward, return_exceptions=True)


async def _refuse(writer: asyncio.StreamWriter, status: str) -> None:
    text = f"{status[4:]}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + text)
    async with asyncio.timeout(HEAD_TIMEOUT_S):
        await writer.drain()
