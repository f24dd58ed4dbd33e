"""Limits of model endpoints, shared by all workers.

Per endpoint and model: a leased semaphore whose size adapts (see `limit_release.lua`), a pause
that any worker sets and all respect, and buckets for calls and tokens per minute. A lease that
is not renewed expires, so calls of a dead worker do not count for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.settings import LimiterSettings

CallOutcome = Literal["ok", "refused", "paused", ""]
"""Outcome of a call. refused: too many calls. paused: by the gateway, for all. "": unknown."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to one request for a permit."""

    granted: bool
    wait_s: float
    """If granted: before the call begins. Else: before asking again."""
    at: float
    """Unix seconds of Redis' clock, as `since`."""
    since: str
    """Time of the request's first try; pass it to the next try, which then keeps its place."""
    among: int
    """Number of permitted calls, this one included if it is."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of the limit of one endpoint and model."""

    limit: float
    """Concurrent calls."""
    leased: int
    waiting: int
    ceiling: float | None = None
    """Number of calls served when others were last refused."""
    pause_s: float = 0.0
    """Remaining seconds of the pause for all calls."""
    hold_s: float = 0.0
    """Usual duration of a call."""
    granted: int = 0
    refused: int = 0
    paused: int = 0


def limit_name(endpoint: str, model: str) -> str:
    """The name of the limit that calls of `model` at `endpoint` share; without credentials."""
    parts = urlsplit(endpoint)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}|{model}"


class EndpointLimits:
    """The limits of one deployment's endpoints. Synchronous and thread-safe, like the ledger.

    Every method is one round trip and may be repeated.
    """

    def __init__(
        self, ledger: Ledger, settings: LimiterSettings | None = None, *, lease_s: float = 40.0
    ) -> None:
        self._ledger = ledger
        self._settings = settings or LimiterSettings()
        self._lease_s = lease_s

    def _given(self, *names: str) -> dict[str, float]:
        """These settings as scripts take them (0 = no limit), and those that all scripts take."""
        shared = ("start_calls", "min_calls", "max_calls", "tokens_per_minute", "state_ttl_s")
        return {name: getattr(self._settings, name) or 0 for name in (*shared, *names)}

    def acquire(self, name: str, request: str, *, tokens: int = 0, since: str = "") -> Admission:
        """Ask for a permit for one call, of which `request` is the id in all its tries.

        `tokens` is its expected usage, `since` the `Admission.since` of the previous try.

        Raises:
            RedisUnavailable, RedisFull: it may be granted; ask again or release it.
        """
        answer = self._ledger.call(
            "limit_acquire",
            name=name,
            id=request,
            lease_s=self._lease_s,
            asked_at=since,
            tokens=tokens,
            **self._given("requests_per_minute", "burst_s"),
        )
        return Admission(
            answer.granted == 1,
            float(answer.wait_s),
            float(answer.at),
            answer.since.decode(),
            answer.among,
        )

    def release(
        self,
        name: str,
        request: str,
        outcome: CallOutcome = "",
        *,
        granted_at: float = 0.0,
        among: int = 0,
        pause_s: float = 0.0,
        more_tokens: int = 0,
    ) -> bool:
        """Release a permit, or stop waiting for it; returns whether it was held.

        `granted_at` and `among` are those of the `Admission`. Nobody may call for `pause_s`, as the
        endpoint demands. `more_tokens` were used than reserved; negative if less.

        Raises:
            RedisUnavailable, RedisFull: the lease then expires.
        """
        answer = self._ledger.call(
            "limit_release",
            name=name,
            id=request,
            outcome=outcome,
            granted_at=granted_at,
            pause_s=pause_s,
            more_tokens=more_tokens,
            among=among,
            **self._given("growth", "decrease", "probe_rounds"),
        )
        return bool(answer == 1)

    def renew(self, name: str, requests: Sequence[str]) -> int:
        """Renew the leases of ongoing calls; returns how many are held.

        Raises:
            RedisUnavailable, RedisFull: they may be renewed.
        """
        held = self._ledger.call(
            "limit_renew",
            name=name,
            lease_s=self._lease_s,
            state_ttl_s=self._settings.state_ttl_s,
            requests=requests,
        )
        return int(held)

    def names(self) -> list[str]:
        """Names of all limits with state, sorted."""
        prefix = self._ledger.key("limit:")
        with explained(self._ledger.url):
            client = self._ledger.client
            found = client.scan_iter(f"{prefix}*", count=1000, _type="HASH")
            return sorted(key.decode().removeprefix(prefix) for key in found)

    def forget(self, name: str) -> bool:
        """Reset a limit; ongoing and waiting calls stay. Returns False if it is unknown."""
        with explained(self._ledger.url):
            answer: Any = self._ledger.client.delete(self._ledger.key(f"limit:{name}"))
        return bool(answer)

    def state(self, name: str) -> LimitState | None:
        """The current state of a limit; None = unknown."""
        ledger = self._ledger
        with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hgetall(ledger.key(f"limit:{name}"))
            pipe.zrange(ledger.key(f"limit:{name}:leases"), 0, -1, withscores=True)
            pipe.zcard(ledger.key(f"limit:{name}:waiting"))
            (seconds, micros), raw, leased, waits = pipe.execute()
        if not raw:
            return None
        now = seconds + micros / 1e6
        found = {key.decode(): float(value) for key, value in raw.items()}
        return LimitState(
            limit=found["limit"],
            leased=sum(end > now for _, end in leased),
            waiting=waits,
            ceiling=found.get("ceiling"),
            pause_s=max(0.0, found.get("pause_until", 0.0) - now),
            hold_s=found.get("hold_s", 0.0),
            granted=int(found.get("granted", 0)),
            refused=int(found.get("refused", 0)),
            paused=int(found.get("paused", 0)),
        )
