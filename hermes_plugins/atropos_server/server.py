"""Serves the trainer's side of the Atropos protocol: `hermes-queue atropos-server`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from hermes_plugins.atropos_server.batches import ServedBatch, TrainerBatches
from hermes_plugins.atropos_server.guard import TrainerGuard
from hermes_plugins.atropos_server.http import (
    Handlers,
    HttpServer,
    TrainerAnswer,
    TrainerRequest,
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
