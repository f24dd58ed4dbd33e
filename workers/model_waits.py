"""Waiting for leave to call a model, taken off every clock of the trajectory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from hermes_queue.agent.limiter import Limiter, Permit
from workers.draft import Draft


class NotCounting:
    """A limiter that stops the trajectory's clocks while it waits.

    The loop learns of the wait from `Reply.waited_s`, when it is over. The bounds of the stage
    and of the attempt must know at once: a wait may be longer than what is left of them.
    """

    def __init__(self, limiter: Limiter, draft: Draft) -> None:
        self._limiter = limiter
        self._draft = draft

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

            await self._draft.not_counting(wait)()
            yield granted[0]
