"""Excludes the waiting time and the failed calls of models from every clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from hermes_queue.agent.endpoint.limiter import Limiter, Permit
from hermes_queue.models import Usage
from workers.clock import Clock


@dataclass(slots=True)
class _TrackedPermit:
    """A permit that records whether its call was answered."""

    permit: Permit
    waited_s: float
    served: bool = False

    def settle(self, usage: Usage) -> None:
        """See `Permit`."""
        self.served = True
        self.permit.settle(usage)

    def refused(self, retry_after_s: float | None, *, paused: bool = False) -> None:
        """See `Permit`."""
        self.permit.refused(retry_after_s, paused=paused)


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
            permit, began = _TrackedPermit(granted[0], granted[0].waited_s), time.monotonic()
            yield permit
            if not permit.served:
                self._clock.postpone(time.monotonic() - began)
