"""Trajectories of this process in flight at model engines: what Redis learns, and who waits.

One task per engine speaks for all of them, as soon as one asks or ends, and at an interval. It
also reads the engine's metrics when Redis says so. While Redis is away nobody waits: the limiter of
calls still holds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.flights import (
    EngineFlights,
    FlightAnswer,
    InFlight,
    ReadOrder,
    engine_name,
)
from hermes_queue.settings import EngineSettings, LeaseSettings
from workers.calls.pressure import METRICS_MAX_BYTES, Pressure, read_metrics, steered

logger = logging.getLogger(__name__)

READ_TIMEOUT_S = 5.0
RESTART_S = 30.0
"""An engine that had metrics, or does not answer, is asked again after this time."""
_AT_ONCE = 64
"""Trajectories that ask in one exchange; the others of this process are behind them anyway."""
_THREADS = 4
ENGINES_MOST = 64
"""Engines that are remembered although nothing is in flight there: jobs may name any endpoints."""
_AGAIN = 4
"""While one waits, there are that many exchanges in an interval."""


@dataclass(slots=True)
class Flight:
    """One trajectory at one engine."""

    id: str
    tokens: int = 0
    """Of its context, as far as the server has counted them; 0 = not yet."""
    since: str = ""
    flies: bool = False
    asks: asyncio.Future[None] | None = None
    """Done when it may go on."""
    estimate: int = 0
    total: int = 0
    """Sum of its contexts over its replies."""
    replies: int = 0

    def replied(self, tokens: int) -> int:
        """Note the tokens of its context; returns by how many it has grown."""
        grew = max(0, tokens - self.tokens)
        self.tokens, self.total, self.replies = tokens, self.total + tokens, self.replies + 1
        return grew

    @property
    def is_asking(self) -> bool:
        """Whether it waits for a place."""
        return self.asks is not None and not self.asks.done()

    def go_on(self) -> None:
        """Let it call, if it waits."""
        if self.asks is not None and not self.asks.done():
            self.asks.set_result(None)

    @property
    def mean(self) -> int:
        """Tokens of its context on average; 0 = there was no reply."""
        return self.total // self.replies if self.replies else 0


@dataclass(slots=True)
class _News:
    """What Redis does not know yet."""

    ended: dict[str, int] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    grew: int = 0


class EnginePlaces:
    """The flights of this process at one engine. On one event loop."""

    def __init__(
        self,
        name: str,
        shared: Callable[[], EngineFlights],
        settings: EngineSettings,
        lease_s: float,
        threads: ThreadPoolExecutor,
    ) -> None:
        self.name = name
        self._shared = shared
        """The fleet's flights; called in a thread, because it may have to connect."""
        self._settings = settings
        self._renew_s = lease_s / 4
        self._flights: dict[str, Flight] = {}
        self._news = _News()
        self._wake = asyncio.Event()
        self._speaker: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._threads = threads
        self._absent_until = 0.0
        self._renewed_at = 0.0
        self._is_away = False

    @property
    def is_absent(self) -> bool:
        """Whether the endpoint is known to have no metrics, so that nothing is counted."""
        return time.monotonic() < self._absent_until

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, and all is said."""
        tasks = filter(None, (self._speaker, self._reader))
        return not (self._flights or self._news.ended) and all(task.done() for task in tasks)

    async def board(self, id: str, estimate: int) -> None:
        """Return once the trajectory may call; at once if it is in flight and fits.

        `estimate` is the expected number of tokens of its context, until the server has counted
        them. After `EngineSettings.max_wait_s` it goes ahead.
        """
        flight = self._flights.setdefault(id, Flight(id))
        if flight.flies or self._is_away:
            return
        if flight.asks is None or flight.asks.done():
            flight.estimate = estimate
            flight.asks = asyncio.get_running_loop().create_future()
            self._speak()
        try:
            async with asyncio.timeout(self._settings.max_wait_s):
                # Several calls of one trajectory may wait for it.
                await asyncio.shield(flight.asks)
        except TimeoutError:
            flight.flies = True
            self._news.changed.add(id)
            waited_s, extra = self._settings.max_wait_s, {"action": "flight_overdue"}
            text = "%s: trajectory %s has waited for %.0f s and goes ahead"
            logger.warning(text, self.name, id, waited_s, extra=extra)
            flight.go_on()

    def replied(self, id: str, tokens: int) -> None:
        """Note the tokens of a trajectory's context after a reply."""
        flight = self._flights.get(id)
        if flight is not None and tokens > 0:
            self._news.grew += flight.replied(tokens)
            self._news.changed.add(id)

    def land(self, id: str) -> None:
        """The trajectory calls no more, or not for now."""
        flight = self._flights.pop(id, None)
        if flight is not None:
            self._news.ended[id] = flight.mean
            self._news.changed.discard(id)
            self._speak()

    async def close(self) -> None:
        """Tell Redis what has ended, and stop."""
        for id in list(self._flights):
            self.land(id)
        speaker, self._speaker = self._speaker, None
        for task in filter(None, (speaker, self._reader)):
            task.cancel()
            await asyncio.wait({task})
        if self._news.ended and not self._is_away:
            await self._exchange()

    def _speak(self) -> None:
        self._wake.set()
        if self._speaker is None or self._speaker.done():
            self._speaker = asyncio.get_running_loop().create_task(self._speak_on())

    async def _speak_on(self) -> None:
        """Exchange while there is anything to say."""
        while self._flights or self._news.ended:
            self._wake.clear()
            try:
                await self._exchange()
            except Exception:  # whatever it is, nobody shall wait for it
                logger.exception("%s: exchange failed", self.name, extra={"action": "flights_bug"})
                self._let_all_go()
            if self.is_absent:
                self._flights.clear()
                self._news = _News()
                return
            waits = any(flight.is_asking for flight in self._flights.values())
            pause_s = self._settings.interval_s / (_AGAIN if waits else 1)
            # What asks, or makes room for what waits, is said at once.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _exchange(self) -> None:
        news, self._news = self._news, _News()
        now = time.monotonic()
        is_due = now - self._renewed_at >= self._renew_s
        held = [
            InFlight(each.id, each.since, each.tokens or each.estimate)
            for each in self._flights.values()
            if each.flies and (is_due or each.id in news.changed)
        ]
        waiting = [each for each in self._flights.values() if each.is_asking]
        asking = [
            InFlight(each.id, each.since, each.tokens or each.estimate, each.tokens > 0)
            for each in sorted(waiting, key=lambda each: each.since or "~")[:_AT_ONCE]
        ]

        def exchange() -> FlightAnswer:
            ended = list(news.ended.items())
            return self._shared().exchange(
                self.name, ended=ended, held=held, asking=asking, grew=news.grew
            )

        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, exchange)
        except (RedisUnavailable, RedisFull) as error:
            self._redis_failed(error, news)
            return
        self._is_away = False
        if is_due:
            self._renewed_at = now
        self._heard(answer, asking)

    def _redis_failed(self, error: Exception, news: _News) -> None:
        """Say it again later, and let everybody go on meanwhile."""
        self._news.ended = news.ended | self._news.ended
        self._news.changed |= news.changed
        self._news.grew += news.grew
        self._renewed_at = 0.0
        self._let_all_go()
        if not self._is_away:
            self._is_away = True
            text = "%s: trajectories in flight are not counted: %s"
            logger.warning(text, self.name, error, extra={"action": "flights_away"})

    def _let_all_go(self) -> None:
        for flight in self._flights.values():
            flight.go_on()

    def _heard(self, answer: FlightAnswer, asked: list[InFlight]) -> None:
        for each in asked:
            if (flight := self._flights.get(each.id)) and not flight.since:
                flight.since = answer.at
        for id in answer.granted:
            if flight := self._flights.get(id):
                self._news.grew += flight.tokens  # its prefix has to be computed again
                flight.flies = True
                flight.go_on()
            else:  # it has landed meanwhile
                self._news.ended.setdefault(id, 0)
        for id in answer.stopped:
            if flight := self._flights.get(id):
                flight.flies = False
        if answer.verdict == "absent":
            self._absent_until = time.monotonic() + answer.absent_s
            self._let_all_go()
        if answer.order and (self._reader is None or self._reader.done()):
            reading = self._read(answer.order)
            self._reader = asyncio.get_running_loop().create_task(reading)

    async def _read(self, order: ReadOrder) -> None:
        """Read the metrics and report them. If that fails, the last reading counts to its end."""
        status, page = await _fetch(self.name)
        loop, found = asyncio.get_running_loop(), None
        if status == 200:
            reading = await loop.run_in_executor(self._threads, read_metrics, page)
            last = Pressure.unpacked(order.memo)
            found = steered(last, reading, order.grown, order.bound, self._settings)
        # An order is part of an answer, so this is connected and does not block.
        report = partial(self._shared().report, self.name, order)
        if found is not None:
            report = partial(
                report, kv_tokens=found.kv_tokens, level=found.level, memo=found.packed()
            )
        elif order.memo or not 200 <= status < 500:  # an engine that starts again
            report = partial(report, absent_s=min(RESTART_S, self._settings.retry_s))
        with suppress(RedisUnavailable, RedisFull):
            await loop.run_in_executor(self._threads, report)
        self._wake.set()


async def _fetch(endpoint: str) -> tuple[int, bytes]:
    """The page of an endpoint's metrics, with its status; 0 = no answer."""
    # The SDK is imported by the calls that this is for.
    from hermes_queue.agent.endpoint.choice import NO_KEY
    from hermes_queue.agent.endpoint.connection import Endpoint

    engine = Endpoint(
        endpoint, NO_KEY, timeout_s=READ_TIMEOUT_S, answer_max_bytes=METRICS_MAX_BYTES
    )
    return await engine.page("/metrics")


class FleetFlights:
    """The engines that trajectories of this process call."""

    def __init__(
        self,
        connect: Callable[[], Ledger],
        settings: EngineSettings | None = None,
        lease: LeaseSettings | None = None,
    ) -> None:
        """Prepare. The first trajectory that calls a model has it connect, in a thread."""
        self._connect = connect
        self._settings = settings or EngineSettings()
        self._lease_s = (lease or LeaseSettings()).duration_s
        self._engines: dict[str, EnginePlaces] = {}
        self._ledger: Ledger | None = None
        self._opening = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="flights")

    def engine(self, endpoint: str) -> EnginePlaces | None:
        """The engine behind an endpoint; None if its trajectories are not counted."""
        if self._settings.admission == "off":
            return None
        name = engine_name(endpoint)
        found = self._engines.get(name)
        if found is None:
            if len(self._engines) >= ENGINES_MOST:
                busy = {name: each for name, each in self._engines.items() if not each.is_idle}
                self._engines = busy
            found = self._engines[name] = EnginePlaces(
                name, self._opened, self._settings, self._lease_s, self._threads
            )
        return None if found.is_absent else found

    def _opened(self) -> EngineFlights:
        """The fleet's flights. Blocks. Raises RedisUnavailable."""
        with self._opening:
            if self._ledger is None:
                self._ledger = self._connect()
        return EngineFlights(self._ledger, self._settings, lease_s=self._lease_s)

    async def close(self) -> None:
        """End all flights and disconnect."""
        for engine in self._engines.values():
            await engine.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._ledger is not None:
            self._ledger.close()
