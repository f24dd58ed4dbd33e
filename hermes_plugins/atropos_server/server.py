"""Serves the trainer's side of the Atropos protocol: `hermes-queue atropos-server`.

It is guarded who may ask: a GET of this protocol hands out a batch, and another one resets the
server.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hermes_plugins.atropos_server.batches import ServedBatch, TrainerBatches
from hermes_plugins.atropos_server.http import (
    Handlers,
    HttpServer,
    TrainerAnswer,
    TrainerRequest,
    said,
)
from hermes_plugins.atropos_server.options import AtroposServerOptions
from hermes_plugins.atropos_server.routes import Routes, refusal, while_starting
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import ConfigurationError
from hermes_queue.sinks.atropos.single_flight import single_sink
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.telemetry.meter import Meter

_READ_S = 0.1
"""How long the thread of the batches may read before it looks for requests."""
_PAUSE_S = 0.25
_WAIT_LOG_S = 30.0
"""Interval at which the log repeats what is waited for."""

logger = logging.getLogger(__name__)

_TOKEN_CHARACTERS = 16
_CHANGES = frozenset({"/batch", "/register", "/reset_data"})
"""Pages that change something. A user may look at the others in a browser."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", ""})


class TrainerServer:
    """One server for one trainer, from start to stop.

    Raises:
        ConfigurationError: the token cannot be read, is short, or is missing where it is needed.
    """

    def __init__(self, options: AtroposServerOptions, meter: SinkMeter | None = None) -> None:
        self.options = options
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Has a result as soon as the server listens."""
        self._guard = TrainerGuard(options.host, options.token_file)
        self._meter = meter or SinkMeter("atropos_server", Meter())
        self._stopping = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = None
        self._routes: Routes | None = None
        """None while the server starts; it listens already, so that a living trainer waits."""
        self._wait_logged_s = time.monotonic()

    async def run(self) -> dict[str, Any]:
        """Serve until `stop()`; the counters.

        Raises:
            ConfigurationError: the address cannot be used, the journal is damaged or in use, or
                the consumer group has another filter.
            HermesQueueError: the disk of the journal is full or failed.
            LeaseLost: another process now serves this consumer group.
            RedisUnavailable: at the start; later outages are waited out.
            SchemaTooNew: a newer hermes-queue published a group.
        """
        self._starting = asyncio.current_task()
        # Not the key of `group`, which is for whoever reads the consumer group: the feed.
        alone = single_sink(f"{self.options.group}:server", self.options.redis_url)
        async with contextlib.AsyncExitStack() as stack:
            http = HttpServer(Handlers(self._answer, self._delivered, self._lost, refusal))
            stack.push_async_callback(http.close)
            await self._listen(http)
            keeper = await stack.enter_async_context(alone)
            self._starting = None
            thread = stack.enter_context(ThreadPoolExecutor(1, "batches"))
            batches = await stack.enter_async_context(self._opened(thread))
            routes = Routes(batches, thread)
            self._routes = routes
            await self._serve(routes, batches, keeper)
            await http.close()
            return batches.summary()

    def stop(self) -> None:
        """End `run`, or by cancellation while it waits for the previous process."""
        self._stopping.set()
        if self._starting is not None:
            self._starting.cancel()

    @asynccontextmanager
    async def _opened(self, thread: ThreadPoolExecutor) -> AsyncIterator[TrainerBatches]:
        loop = asyncio.get_running_loop()
        batches = await loop.run_in_executor(thread, TrainerBatches, self.options, self._meter)
        try:
            yield batches
        finally:
            batches.stop()
            await loop.run_in_executor(thread, batches.close)

    async def _listen(self, http: HttpServer) -> None:
        host, port = self.options.host, self.options.port
        try:
            self.port.set_result(await http.listen(host, port))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        extra = {"action": "atropos_listen", "port": self.port.result()}
        logger.info("serving trainers at http://%s:%d", host, self.port.result(), extra=extra)

    async def _answer(self, request: TrainerRequest) -> TrainerAnswer:
        if refused := self._guard.refused(request):
            return refused
        return await (self._routes.answer(request) if self._routes else while_starting(request))

    async def _delivered(self, batch: ServedBatch, torn: Callable[[], bool]) -> None:
        if self._routes is not None:
            await self._routes.delivered(batch, torn)

    async def _lost(self, batch: ServedBatch) -> None:
        if self._routes is not None:
            await self._routes.lost(batch)

    async def _serve(
        self, routes: Routes, batches: TrainerBatches, keeper: asyncio.Task[None]
    ) -> None:
        reading = asyncio.create_task(self._read_on(routes, batches))
        stopping = asyncio.create_task(self._stopping.wait())
        ends: list[asyncio.Future[Any]] = [keeper, routes.failed, reading]
        try:
            await asyncio.wait([*ends, stopping], return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                if each.done():
                    each.result()
        finally:
            await end_tasks(reading, stopping)

    async def _read_on(self, routes: Routes, batches: TrainerBatches) -> None:
        """Keep the groups of the next batch ready, and say what is waited for."""
        while True:
            if await routes.blocking(batches.read_on, _READ_S):
                await asyncio.sleep(_PAUSE_S)
            now_s = time.monotonic()
            if now_s - self._wait_logged_s < _WAIT_LOG_S:
                continue
            self._wait_logged_s = now_s
            registration = batches.progress.registration
            if registration is None:
                text = "no trainer has registered yet"
            else:
                needed = registration.batch_size // self.options.group_size
                text = (
                    f"{batches.step} batches handed out, {batches.progress.saved} of them for "
                    f"good; {batches.waiting} of {needed} groups for the next one"
                )
            logger.info("%s", text, extra={"action": "atropos_progress"})


class TrainerGuard:
    """Lets in clients with the token, or on loopback any client but a web page.

    Raises:
        ConfigurationError: the token cannot be read, is short, or is missing where it is needed.
    """

    def __init__(self, host: str, token_file: Path | None) -> None:
        self._names = {*_LOOPBACK, host.lower()}
        self._token = None if token_file is None else _read(token_file)
        if self._token is None and not _is_loopback(host):
            raise ConfigurationError(
                f"--host {host}: whoever reaches the server can take batches and reset it, so that "
                "an address other than loopback needs --token-file"
            )

    def refused(self, request: TrainerRequest) -> TrainerAnswer | None:
        """The refusal of a request; None if it may be answered."""
        headers = request.headers
        # Browsers say what they fetch, and for whom: "none" is an address that a user typed, also
        # if a page there redirects to this one. Older ones say only the former, or nothing.
        is_browser = any(name.startswith("sec-fetch-") for name in headers)
        is_typed = headers.get("sec-fetch-site") == "none" and request.path not in _CHANGES
        if "origin" in headers or (is_browser and not is_typed):
            return said(403, "not for web pages")
        if self._token is None:
            # A page may have a name that it made resolve to this host.
            name = _host_name(headers.get("host", ""))
            return None if name in self._names else said(403, f"this server is not {name!r}")
        if _carries(self._token, headers.get("authorization", "")):
            return None
        return said(401, "send the token: http://trainer:TOKEN@host:port, or as a bearer token")


def _read(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file: {error}") from error
    if len(token) < _TOKEN_CHARACTERS:
        raise ConfigurationError(
            f"--token-file: the token has less than {_TOKEN_CHARACTERS} characters"
        )
    return token


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """The name in a `Host` header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _carries(token: str, authorization: str) -> bool:
    """Whether a header has the token, as a bearer token or as a password."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    elif kind.lower() != "bearer":
        return False
    return secrets.compare_digest(value.encode(), token.encode())
