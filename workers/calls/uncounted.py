"""Excludes the waiting time and the failed calls of models from every clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from hermes_queue.agent.endpoint.limiter import Limiter, ObservedPermit, Permit
from workers.clock import Clock


class NotCounting:
    """A limiter that stops the trajectory's clocks during waits and failed calls.

    The agent loop learns of both from `Reply.waited_s` afterwards. The limits of the stage and
    of the attempt must know at once: a wait may exceed what is left of them.
    """

    def __init__(self, limiter: Limiter, clock: Clock) -> None:
        self._limiter = limiter
        self._clock = clock

    @asynccontextmanager
    async def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AsyncIterator[Permit]:
        """See `Limiter.slot`."""
        granted: list[Permit] = []
        async with AsyncExitStack() as stack:

            async def wait() -> None:
                slot = self._limiter.slot(
                    endpoint, model, estimate_tokens=estimate_tokens, delay_s=delay_s
                )
                granted.append(await stack.enter_async_context(slot))

            await self._clock.not_counting(wait)()
            permit, began = ObservedPermit(granted[0], granted[0].waited_s), time.monotonic()
            yield permit
            if permit.outcome != "ok":
                self._clock.exclude(began)
