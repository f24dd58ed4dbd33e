"""Waiting for leave to call a model, and calls that failed: taken off every clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from hermes_queue.agent.endpoint.limiter import Limiter, Permit
from hermes_queue.models import Usage
from workers.clock import Clock


@dataclass(slots=True)
class _Noted:
    """A permit that knows whether its call was served."""

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
    """A limiter that stops the trajectory's clocks while it waits, and for calls that fail.

    The loop learns of both from `Reply.waited_s`, when they are over. The bounds of the stage
    and of the attempt must know at once: a wait may be longer than what is left of them.
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
            noted, began = _Noted(granted[0], granted[0].waited_s), time.monotonic()
            yield noted
            if not noted.served:
                self._clock.postpone(time.monotonic() - began)
