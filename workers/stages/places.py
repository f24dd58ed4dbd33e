"""Places of stages: a trajectory takes one when a stage begins, and gives it back when it ends.

It never holds the place of one stage while it waits for that of another, so nothing can lock up.
What it waits counts towards no deadline and no budget of the agent.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType

from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxUnavailable, Stage
from hermes_queue.errors import stage as failing_in
from hermes_queue.models import Usage
from hermes_queue.settings import LeaseSettings, LimiterSettings, StageSettings
from hermes_queue.settings.section import SECONDS_MOST
from workers.calls.fleet_limiter import FleetLimiter
from workers.clock import Clock

PLACED: tuple[Stage, ...] = ("setup", "agent", "verify")
"""Stages that can have places."""
_LOOK_S = 0.5
"""Seconds between two looks of a waiting trajectory whether its worker is leaving."""
_LEAVING = "the worker takes no more work, and the job still waits for a place"
ENDPOINT = "stage://fleet"
"""Endpoint of the fleet's places in `hermes-queue limits list`; the model is the stage."""


class OwnPlaces:
    """Places in this process, first come, first served; their number may change."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self.look()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was given in the same moment
                await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._held -= 1
        self.look()

    def look(self) -> None:
        """Give away what is free, also after there are more places."""
        while self._waiting and self._held < max(1, self._most()):
            place = self._waiting.popleft()
            if not place.done():  # else who waited was cancelled
                self._held += 1
                place.set_result(None)


class StagePlaces:
    """The places of one worker process, and its share of those of the fleet."""

    def __init__(
        self,
        own: Mapping[Stage, Callable[[], int]],
        fleet: Mapping[Stage, FleetLimiter],
        is_leaving: Callable[[], bool],
    ) -> None:
        self._own = {name: OwnPlaces(most) for name, most in own.items()}
        self._fleet = dict(fleet)
        self.is_leaving = is_leaving
        """Whether the worker takes no more work, so that what has not begun is left to others."""

    @classmethod
    def from_settings(
        cls,
        url: str,
        settings: StageSettings | None = None,
        *,
        agents: Callable[[], int] | None = None,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> StagePlaces | None:
        """As the settings say; None if no stage is limited, so that nothing is counted.

        `agents`: how many agents may run here at most, whatever the settings say.
        """
        found = settings or StageSettings()
        own: dict[Stage, Callable[[], int]] = {}
        fleet: dict[Stage, FleetLimiter] = {}
        for name in PLACED:
            most = getattr(found, name)
            bound = agents if name == "agent" else None
            if most or bound:
                own[name] = partial(_least, most, bound)
            if most := getattr(found, f"fleet_{name}"):
                fleet[name] = _fleet_places(url, most)
        return cls(own, fleet, is_leaving) if own or fleet else None

    def look(self) -> None:
        """Give away what is free in this process."""
        for places in self._own.values():
            places.look()

    def limits(self, name: Stage) -> bool:
        """Whether a stage has a limited number of places."""
        return name in self._own or name in self._fleet

    def stage(self, clock: Clock, name: Stage, limit_s: float | None) -> PlacedStage:
        """The stage, which begins as soon as it has its place."""
        return PlacedStage(self, clock, name, limit_s)

    @asynccontextmanager
    async def place(self, name: Stage) -> AsyncIterator[None]:
        """Wait for a place of a stage; it is given back with the end of the block."""
        async with AsyncExitStack() as held:
            # The worker's own first: one that waits here must not hold a place of the fleet.
            if own := self._own.get(name):
                await held.enter_async_context(own)
            if fleet := self._fleet.get(name):
                permit = await held.enter_async_context(fleet.slot(ENDPOINT, name))
                held.callback(permit.settle, Usage())
            yield

    def renew(self) -> None:
        """Renew the fleet's places that trajectories hold. Thread-safe; for the heartbeat.

        Raises:
            RedisUnavailable, RedisFull: the places expire unless this is repeated in time.
        """
        for limiter in self._fleet.values():
            limiter.renew()

    async def close(self) -> None:
        """Give back what is held, and disconnect."""
        for limiter in self._fleet.values():
            await limiter.close()


def _least(most: int | None, bound: Callable[[], int] | None) -> int:
    return min(most or sys.maxsize, bound() if bound else sys.maxsize)


def _fleet_places(url: str, most: int) -> FleetLimiter:
    """A limiter with a fixed number of places, and patience: a full stage is no failure."""
    settings = LimiterSettings(
        start_calls=most,
        min_calls=most,
        max_calls=most,
        requests_per_minute=None,
        tokens_per_minute=None,
        max_wait_s=SECONDS_MOST,
    )
    return FleetLimiter(url, settings, LeaseSettings(), what="places of stages")


class PlacedStage:
    """A stage of an attempt, with its place; see `Clock.stage`.

    The wait is in the stage seconds as `<stage>_wait`.
    """

    __slots__ = ("_clock", "_held", "_limit_s", "_name", "_places", "_timed")

    def __init__(
        self, places: StagePlaces, clock: Clock, name: Stage, limit_s: float | None
    ) -> None:
        self._places = places
        self._clock = clock
        self._name: Stage = name
        self._limit_s = limit_s
        self._held = AsyncExitStack()

    async def __aenter__(self) -> None:
        try:
            await self._wait()
            self._timed = self._clock.timed(self._name, self._limit_s)
            await self._timed.__aenter__()
        except BaseException:  # nobody else gives the place back: there will be no `__aexit__`
            await unbroken(self._held.aclose())
            raise

    async def _wait(self) -> None:
        clock, name, began = self._clock, self._name, time.monotonic()
        clock.waits_for = name
        try:
            with failing_in(name):
                await clock.not_counting(self._take)()
        finally:
            clock.waits_for = None
            seconds, key = clock.stage_seconds, f"{name}_wait"
            seconds[key] = round(seconds.get(key, 0.0) + time.monotonic() - began, 4)
            if clock.timeline is not None:
                clock.timeline.stage(key, began, None)

    async def _take(self) -> None:
        """Wait for the place.

        Raises:
            SandboxUnavailable: the worker is leaving, and the agent has done nothing yet. The job
                is handed back.
        """
        place = self._places.place(self._name)
        taking = asyncio.ensure_future(self._held.enter_async_context(place))
        has_begun = "agent" in self._clock.stage_seconds
        try:
            while not (await asyncio.wait({taking}, timeout=_LOOK_S))[0]:
                self._places.look()
                if not has_begun and self._places.is_leaving():
                    raise SandboxUnavailable(_LEAVING, retry_after_s=0.0)
            taking.result()
        except BaseException:  # it must have ended before what it may have taken is given back
            await unbroken(end_tasks(taking))
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timed.__aexit__(kind, error, trace)
        finally:
            await self._held.aclose()
