"""Leave to call a model endpoint. Who counts the calls, and where, is not the agent's business.

`Unlimited` is for a process of its own; workers give agents one that the whole fleet shares.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from hermes_queue.models import Usage


class Permit(Protocol):
    """Leave for one HTTP request. Left without a word, the request told nothing of the limit."""

    waited_s: float
    """How long it took to get; no part of anybody's working time."""

    def settle(self, usage: Usage) -> None:
        """The request was served, and used so many tokens."""

    def refused(self, retry_after_s: float | None, *, paused: bool = False) -> None:
        """The endpoint takes no requests for now.

        Args:
            retry_after_s: for how long, if it said so; holds for everybody.
            paused: it says that it is paused, e.g. while weights are updated, so that this
                tells nothing of how many requests it can take.
        """


class Limiter(Protocol):
    """Says when a request to a model endpoint may be made."""

    def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AbstractAsyncContextManager[Permit]:
        """Wait for leave; it is given back at the end of the block.

        Args:
            endpoint: base URL without credentials.
            model: name of the model.
            estimate_tokens: prompt and completion, as far as one can tell beforehand.
            delay_s: what to wait in any case, e.g. as backoff.

        Raises:
            ModelError: there was no leave for longer than is reasonable.
        """
        ...


@dataclass(slots=True)
class FreePermit:
    """Leave that was given without counting."""

    waited_s: float = 0.0

    def settle(self, usage: Usage) -> None:
        """Nobody counts."""

    def refused(self, retry_after_s: float | None, *, paused: bool = False) -> None:
        """The caller's own backoff has to do."""


class Unlimited:
    """Every request is made at once."""

    @asynccontextmanager
    async def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AsyncIterator[Permit]:
        """See `Limiter.slot`; waits for `delay_s` alone."""
        began = time.monotonic()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        yield FreePermit(time.monotonic() - began)
