"""The calls of one trajectory, which may be made while it is in flight at their engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from hermes_queue.agent.endpoint.choice import OPENAI_URL
from hermes_queue.agent.endpoint.limiter import Limiter, ObservedPermit, Permit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.calls.flights import EnginePlaces, FleetFlights


class FlightLimiter:
    """A limiter whose first call to an engine waits until the trajectory's context fits there.

    Outside `in_flight`, e.g. for the calls of a judge, it is the limiter below.
    """

    def __init__(self, limiter: Limiter, flights: FleetFlights, trajectory_id: str) -> None:
        self._limiter = limiter
        self._flights = flights
        self._id = trajectory_id
        self._is_open = False
        self._engines: set[EnginePlaces] = set()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Be in flight from the first call on, until the block ends."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            for engine in self._engines:
                engine.land(self._id)
            self._engines.clear()

    @asynccontextmanager
    async def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AsyncIterator[Permit]:
        """See `Limiter.slot`; the wait for the engine is part of `Permit.waited_s`."""
        began = time.monotonic()
        engine = self._flights.engine(endpoint) if self._is_open else None
        if engine is not None and endpoint != OPENAI_URL:
            self._engines.add(engine)
            await engine.board(self._id, estimate_tokens)
        boarded_s = time.monotonic() - began
        slot = self._limiter.slot(endpoint, model, estimate_tokens=estimate_tokens, delay_s=delay_s)
        async with slot as granted:
            permit = ObservedPermit(granted, granted.waited_s + boarded_s)
            yield permit
        if engine is not None and permit.outcome == "ok":
            usage = permit.usage
            engine.replied(self._id, usage.prompt_tokens + usage.completion_tokens)


def in_flight(limiter: Limiter | None) -> AbstractContextManager[None]:
    """The part of a trajectory in which its calls count as one flight, if they are counted."""
    return limiter.open() if isinstance(limiter, FlightLimiter) else nullcontext()
