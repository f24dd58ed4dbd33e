"""Permission to call a model endpoint, independent of who counts the calls.

`Unlimited` is for a single process; workers pass their agents a limiter that the whole fleet
shares.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from hermes_queue.models import Usage


class Permit(Protocol):
    """Permission for one HTTP request. Without a report it says nothing about the limit."""

    waited_s: float
    """Seconds spent waiting for the permission; not part of any working time."""

    def settle(self, usage: Usage) -> None:
        """Report that the request was served and used this many tokens."""

    def refused(self, retry_after_s: float | None, *, paused: bool = False) -> None:
        """Report that the endpoint takes no requests, for everybody for `retry_after_s` if known.

        If it is `paused`, e.g. while weights are updated, this says nothing about its limit.
        """


class Limiter(Protocol):
    """Decides when a request to a model endpoint may be sent."""

    def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AbstractAsyncContextManager[Permit]:
        """Wait for permission, at least `delay_s`; it ends with the block.

        `endpoint` is a base URL without credentials; `estimate_tokens` is for prompt and
        completion. Raises ModelError if there was no permission for unreasonably long.
        """


@dataclass(slots=True)
class ObservedPermit:
    """Remembers its caller's reports, and passes them on to `permit` if there is one."""

    permit: Permit | None
    waited_s: float
    outcome: str = "failed"
    usage: Usage = field(default_factory=Usage)

    def settle(self, usage: Usage) -> None:
        """See `Permit`."""
        self.outcome, self.usage = "ok", usage
        if self.permit:
            self.permit.settle(usage)

    def refused(self, retry_after_s: float | None, *, paused: bool = False) -> None:
        """See `Permit`."""
        self.outcome = "paused" if paused else "refused"
        if self.permit:
            self.permit.refused(retry_after_s, paused=paused)


class Unlimited:
    """Permits every request at once."""

    @asynccontextmanager
    async def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AsyncIterator[Permit]:
        """See `Limiter.slot`; waits only for `delay_s`."""
        began = time.monotonic()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        yield ObservedPermit(None, time.monotonic() - began)
