"""Permission to call a model endpoint, counted in Redis for all workers of the deployment.

While Redis is away, calls continue after a few seconds, with a warning: running trajectories
hold slots and leases that cost more than a 429 does, and their records wait in the spool anyway.
Each process then makes as many concurrent calls as it had in flight, so the rate of the whole
fleet stays about the same.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from hermes_queue.agent.endpoint.limiter import Permit
from hermes_queue.errors import ModelError, RedisFull, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.limiter import Admission, CallOutcome, EndpointLimits, limit_name
from hermes_queue.models import Usage
from hermes_queue.settings import LeaseSettings, LimiterSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PROBE_S = 1.0
"""Interval in which one call checks whether Redis is back."""
_LOCAL_POLL_S = 0.05


@dataclass(slots=True)
class _Call:
    """One request to an endpoint, before and after it is permitted; a `Permit`."""

    name: str
    tokens: int
    request: str = field(default_factory=lambda: secrets.token_hex(8))
    since: str = ""
    granted_at: float = 0.0
    among: int = 0
    asked: bool = False
    """Redis may have a record of it."""
    leased: bool = False
    """Whether it holds a lease in Redis; False if it was permitted without Redis."""
    waited_s: float = 0.0
    outcome: CallOutcome = ""
    pause_s: float = 0.0
    more_tokens: int = 0

    def settle(self, usage: Usage) -> None:
        """See `Permit`."""
        self.outcome = "ok"
        used = usage.prompt_tokens + usage.completion_tokens
        self.more_tokens = used - self.tokens if used else 0

    def refused(self, retry_after_s: float | None, *, paused: bool = False) -> None:
        """See `Permit`."""
        self.outcome = "paused" if paused else "refused"
        self.pause_s = retry_after_s or 0.0
        self.more_tokens = -self.tokens


class FleetLimiter:
    """A `Limiter` for the coroutines of one worker process.

    Its connection has short timeouts: a caller waits for Redis for a few seconds at most.
    """

    def __init__(
        self,
        url: str,
        settings: LimiterSettings | None = None,
        lease: LeaseSettings | None = None,
        *,
        what: str = "model calls",
    ) -> None:
        """Connect; `what` is counted, in the words of a log line."""
        self._what = what
        self._settings = settings or LimiterSettings()
        timeout_s = max(1.0, self._settings.redis_grace_s / 2)
        self._ledger = Ledger.connect(url, timeout_s=timeout_s)
        lease_s = (lease or LeaseSettings()).duration_s
        self._limits = EndpointLimits(self._ledger, self._settings, lease_s=lease_s)
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="limiter")
        self._calls: dict[str, _Call] = {}
        """All permitted calls."""
        self._lock = threading.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self._owed: list[_Call] = []
        """Calls that have ended, but whose release did not reach Redis."""
        self._silent_since: float | None = None
        self._share = 1
        self._probe_at = 0.0

    @asynccontextmanager
    async def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AsyncIterator[Permit]:
        """See `Limiter.slot`.

        Raises:
            ModelError: the call was not permitted within `LimiterSettings.max_wait_s`.
        """
        began = time.monotonic()
        call = _Call(limit_name(endpoint, model), estimate_tokens)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        await self._wait_for_permission(call)
        call.waited_s = time.monotonic() - began
        try:
            yield call
        finally:
            with self._lock:
                self._calls.pop(call.request, None)
            if call.leased:
                self._later(self._give_back(call))

    def renew(self) -> None:
        """Renew the leases of running calls. Thread-safe; for the worker's heartbeat.

        Raises:
            RedisUnavailable, RedisFull: the leases expire unless this is repeated in time.
        """
        by_name: dict[str, list[str]] = defaultdict(list)
        with self._lock:
            for call in self._calls.values():
                if call.leased:
                    by_name[call.name].append(call.request)
        for name, requests in by_name.items():
            self._limits.renew(name, requests)

    async def close(self) -> None:
        """Release everything and disconnect."""
        while self._background:
            await asyncio.wait(set(self._background))
        self._executor.shutdown(wait=False)
        self._ledger.close()

    async def _wait_for_permission(self, call: _Call) -> None:
        give_up_at = time.monotonic() + self._settings.max_wait_s
        while True:
            if self._redis_is_away():
                if self._take_locally(call):
                    return
                pause_s = _LOCAL_POLL_S
            else:
                answer = await self._ask(call)
                if answer is None:
                    pause_s = min(0.5, self._settings.redis_grace_s / 4)
                elif answer.granted:
                    return await self._begin(call, answer)
                else:
                    call.since, pause_s = answer.since, answer.wait_s
            if time.monotonic() > give_up_at:
                self._later(self._give_back(call))
                raise ModelError(
                    f"{call.name}: no call permitted within {self._settings.max_wait_s:.0f} s"
                )
            await self._sleep(call, pause_s * random.uniform(0.75, 1.0))  # noqa: S311

    async def _ask(self, call: _Call) -> Admission | None:
        """Ask once; None = Redis did not answer."""
        call.asked = True
        acquire = partial(self._limits.acquire, tokens=call.tokens, since=call.since)
        asking = asyncio.ensure_future(self._in_thread(acquire, call.name, call.request))
        try:
            # All threads may be waiting for a Redis that hangs, so that this call has not even
            # begun.
            async with asyncio.timeout(self._settings.redis_grace_s):
                answer = await asyncio.shield(asking)
        except TimeoutError:
            asking.cancel()
            self._redis_failed(RedisUnavailable("no answer in time"))
            return None
        except asyncio.CancelledError:
            # Redis may grant the permission after we have left. Unless it is released once the
            # answer is there, it counts against the limit until its lease ends.
            self._later(self._give_back(call, after=asking))
            raise
        except (RedisUnavailable, RedisFull) as error:
            self._redis_failed(error)
            return None
        self._redis_answered()
        return answer

    async def _begin(self, call: _Call, answer: Admission) -> None:
        call.granted_at, call.among, call.leased = answer.at + answer.wait_s, answer.among, True
        # Registered before the wait for its start, during which its lease has to be renewed too.
        with self._lock:
            self._calls[call.request] = call
        if answer.wait_s > 0:
            await self._sleep(call, answer.wait_s)

    async def _sleep(self, call: _Call, seconds: float) -> None:
        """Sleep; a call cancelled meanwhile leaves the queue, or releases its permission."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            with self._lock:
                self._calls.pop(call.request, None)
            call.more_tokens = -call.tokens if call.leased else 0
            self._later(self._give_back(call))
            raise

    async def _give_back(
        self, call: _Call, *, after: asyncio.Future[Admission] | None = None
    ) -> None:
        """Release the call, once `after` is done. If that fails, its lease expires by itself."""
        if after is not None:
            with suppress(RedisUnavailable, RedisFull):
                answer = await after
                call.more_tokens = -call.tokens if answer.granted else 0
        if self._silent_since is not None:
            self._owed.append(call)
            return
        try:
            await self._in_thread(
                self._limits.release,
                call.name,
                call.request,
                call.outcome,
                granted_at=call.granted_at,
                among=call.among,
                # No caller waits longer, so by then one of them must try again.
                pause_s=min(call.pause_s, self._settings.max_wait_s),
                more_tokens=call.more_tokens,
            )
        except (RedisUnavailable, RedisFull) as error:
            self._owed.append(call)
            self._redis_failed(error)

    def _redis_failed(self, error: Exception) -> None:
        if self._silent_since is not None:
            return
        self._silent_since = time.monotonic()
        self._share = max(1, len(self._calls))
        logger.warning(
            "%s are not counted while Redis is away; from in %.0f s on this worker has "
            "at most %d at once: %s",
            self._what,
            self._settings.redis_grace_s,
            self._share,
            error,
            extra={"action": "limiter_away"},
        )

    def _redis_answered(self) -> None:
        if self._silent_since is not None:
            self._silent_since = None
            owed, self._owed = self._owed, []
            for call in owed:
                self._later(self._give_back(call))
            extra = {"action": "limiter_back"}
            logger.info("Redis is back: %s are counted again", self._what, extra=extra)

    def _redis_is_away(self) -> bool:
        """Whether to do without Redis for now; every `_PROBE_S` one caller is sent to check."""
        now = time.monotonic()
        if self._silent_since is None or now - self._silent_since < self._settings.redis_grace_s:
            return False
        if now >= self._probe_at:
            self._probe_at = now + _PROBE_S
            return False
        return True

    def _take_locally(self, call: _Call) -> bool:
        if len(self._calls) >= self._share:
            return False
        with self._lock:
            self._calls[call.request] = call
        if call.asked:
            self._owed.append(call)
        return True

    async def _in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(function, *args, **kwargs))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background; only `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
