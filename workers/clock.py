"""The clock of one attempt: its stages, their limits, and waiting time that does not count."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from hermes_queue.agent.budget import Uncounted
from hermes_queue.agent.loop import BeforeTurn
from hermes_queue.errors import DeadlineExceeded, Stage, stage
from hermes_queue.telemetry.otel.timeline import Timeline


class HasPlaces(Protocol):
    """Decides when a stage may begin; see `workers.stages.places`."""

    def limits(self, name: Stage) -> bool:
        """Whether a stage has a limited number of places."""
        ...

    def stage(
        self, clock: Clock, name: Stage, limit_s: float | None
    ) -> AbstractAsyncContextManager[None]:
        """The stage, which begins as soon as it has its place."""
        ...


@dataclass(slots=True)
class Clock:
    """Deadlines and times of one attempt. It starts when the slot is leased."""

    total_s: float = math.inf
    """Seconds of the total deadline that earlier attempts have left."""
    current: Stage = "load"
    """The stage that the attempt is in."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    deadline: float = math.inf
    """End of the attempt on the monotonic clock."""
    on_stage: Callable[[Stage], None] | None = None
    """Called with each stage when it begins."""
    timeline: Timeline | None = None
    """Notes the stages of an attempt that is traced."""
    places: HasPlaces | None = None
    """The places of stages; None = every stage may begin at once."""
    waits_for: Stage | None = None
    """The stage for whose place the attempt waits."""
    _began: float | None = None
    _carried_s: float = 0.0
    """See `carry`."""
    _waited_s: float = 0.0
    """Time that counts towards no deadline: the run was paused, or the endpoint busy or failing."""
    _uncounted: Uncounted = field(default_factory=Uncounted)
    _stage_timeout: asyncio.Timeout | None = None
    _waits: list[float] = field(default_factory=list)
    """When the waits that are open began."""
    _held: asyncio.Timeout | None = None
    """The stage's limit, if it cannot expire now because of them; it then ends at `_held_end`."""
    _held_end: float | None = None

    def start(self) -> None:
        """Start: the slot is leased. The wait for it counts towards no deadline."""
        self._began = time.monotonic()
        self.deadline = self._began + self.total_s

    @property
    def used_s(self) -> float:
        """Seconds of the total deadline that this attempt has used up."""
        own_s = 0.0 if self._began is None else time.monotonic() - self._began - self._waited_s
        return self._carried_s + own_s

    def carry(self, seconds: float) -> None:
        """Count time of an earlier attempt that this one continues, and that nobody has counted."""
        self._carried_s += seconds
        self.deadline -= seconds

    @property
    def total_left_s(self) -> float:
        """Seconds of the total deadline that are left for further attempts."""
        return self.total_s - self.used_s

    @property
    def waiting_s(self) -> float:
        """Seconds that the longest of the open waits has lasted; 0 if there is none."""
        return time.monotonic() - min(self._waits) if self._waits else 0.0

    @property
    def stage_end(self) -> float:
        """End of a stage with a limit on the monotonic clock, as far as is known now."""
        end = self._stage_timeout.when() if self._stage_timeout else None
        return self.deadline if end is None else end

    @property
    def overdue_s(self) -> float:
        """Seconds since the stage should have ended; 0 before that, and while a wait is open."""
        timeout = self._stage_timeout  # asked by another thread
        end = timeout.when() if timeout else None
        return 0.0 if end is None or self._waits else max(0.0, time.monotonic() - end)

    def left_s(self, limit_s: float) -> float:
        """Seconds a stage may take: its own limit within what is left of the attempt."""
        return max(0.0, min(limit_s, self.deadline - time.monotonic()))

    def not_counting(self, wait: BeforeTurn) -> BeforeTurn:
        """`wait`, wrapped so that all deadlines move by the time it takes.

        Several may run at once; the time that they share counts once.
        """

        async def waiting() -> None:
            began = time.monotonic()
            self._hold(began)
            try:
                await wait()
            finally:
                self._resume(began)
                self.exclude(began)

        return waiting

    def _hold(self, began: float) -> None:
        """Let no stage expire: a wait has begun whose length is unknown yet."""
        self._waits.append(began)
        if self._held is None and self._stage_timeout:
            self._held, self._held_end = self._stage_timeout, self._stage_timeout.when()
            self._held.reschedule(None)

    def _resume(self, began: float) -> None:
        self._waits.remove(began)
        if not self._waits and self._held:
            held, self._held = self._held, None
            if held is self._stage_timeout:
                held.reschedule(self._held_end)

    def exclude(self, began: float) -> None:
        """Take the time since `began` off all deadlines, but none of it a second time."""
        self.postpone(self._uncounted.add(began, time.monotonic()))

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by time that was not the agent's."""
        self.deadline += seconds
        self._waited_s += seconds
        if self._held:
            self._held_end = None if self._held_end is None else self._held_end + seconds
            return
        end = self._stage_timeout.when() if self._stage_timeout else None
        if self._stage_timeout and end is not None:
            self._stage_timeout.reschedule(end + seconds)

    @property
    def shown(self) -> str:
        """The stage that the attempt is in, or for which it waits, for people and metrics."""
        return f"{self.waits_for}_wait" if self.waits_for else self.current

    def stage(
        self, name: Stage, *, limit_s: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Time a stage, limit it, and attribute its failures. It begins once it has a place.

        Raises:
            TrajectoryFailure: with `stage` filled in; `DeadlineExceeded` after `limit_s` or at
                the attempt's deadline, whichever comes first.
        """
        if self.places is not None and self.places.limits(name):
            return self.places.stage(self, name, limit_s)
        return TimedStage(self, name, limit_s)

    def timed(self, name: Stage, limit_s: float | None) -> TimedStage:
        """The stage alone, of an attempt that has its place."""
        return TimedStage(self, name, limit_s)


class TimedStage:
    """One stage; see `Clock.stage`. A class, since a generator takes twice as long."""

    __slots__ = ("_allowed_s", "_began", "_clock", "_limit_s", "_name", "_timeout")

    def __init__(self, clock: Clock, name: Stage, limit_s: float | None) -> None:
        self._clock = clock
        self._name: Stage = name
        self._limit_s = limit_s
        self._timeout: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        clock = self._clock
        clock.current = self._name
        if clock.on_stage:
            clock.on_stage(self._name)
        self._began = time.monotonic()
        if self._limit_s is not None:
            self._allowed_s = clock.left_s(self._limit_s)
            self._timeout = clock._stage_timeout = asyncio.timeout(self._allowed_s)
            await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                with stage(self._name):
                    await self._fail(kind, error, trace)
            elif self._timeout:
                await self._timeout.__aexit__(None, None, None)
        finally:
            clock, spent_s = self._clock, time.monotonic() - self._began
            clock._stage_timeout = None
            past_s = clock.stage_seconds.get(self._name, 0.0)
            clock.stage_seconds[self._name] = round(past_s + spent_s, 4)
            if clock.timeline is not None:
                clock.timeline.stage(self._name, self._began, error)

    async def _fail(
        self, kind: type[BaseException] | None, error: BaseException, trace: TracebackType | None
    ) -> None:
        """Raise `error`, or in its place the deadline if that is what ended the stage."""
        if self._timeout:
            try:
                await self._timeout.__aexit__(kind, error, trace)
            except TimeoutError as expired:
                error = expired
            if isinstance(error, TimeoutError) and self._timeout.expired():
                raise DeadlineExceeded(
                    f"{self._name} took longer than {self._allowed_s:.0f} s"
                ) from error
        raise error
