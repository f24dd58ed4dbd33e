"""Trajectories in flight at model engines, counted for all workers by the tokens of their contexts.

See `flights.lua`. A worker process reports what has changed and learns which of its trajectories
may go on; now and then it is asked to read the engine's metrics for all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.settings import EngineSettings

FlightVerdict = Literal["counted", "absent", "open", "asked"]
"""counted: as many as fit. absent: the endpoint has no metrics. open: they cannot be read now, so
nobody waits. asked: the first reading is awaited."""

PROBE_S = 6.0
"""Longest wait for the first reading of an endpoint."""
FLIGHT_PARTS = (":flying", ":tokens", ":waiting", ":wanted", ":alive")
"""Ends of the keys that hold the trajectories of an engine."""
_STATE_TTL_S = 86400


@dataclass(frozen=True, slots=True)
class InFlight:
    """A trajectory in flight, or one that wants to be."""

    id: str
    since: str
    """Time of its first try; "" = it is made now."""
    tokens: int
    """Of its context."""
    known: bool = True
    """Whether `tokens` were counted by the server; else they are an estimate."""


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """An order to read an engine's metrics, for one process."""

    turn: str
    memo: str
    """What the last reader left; "" = there was none."""
    grown: int
    """Tokens by which contexts have grown so far."""
    bound: int
    """How often somebody had to wait so far."""


@dataclass(frozen=True, slots=True)
class FlightAnswer:
    """What one process learns."""

    verdict: FlightVerdict
    at: str
    """Time of Redis' clock: the `since` of those that were first to ask."""
    granted: frozenset[str]
    stopped: frozenset[str]
    order: ReadOrder | None
    absent_s: float
    """Seconds for which nobody need ask again."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of one engine, for people and metrics."""

    flying: int
    waiting: int
    tokens: int
    """Of the contexts in flight."""
    kv_tokens: int | None
    level: float | None
    """Share of the cache that contexts may take."""
    memo: dict[str, Any]
    """What was last read."""


def engine_name(endpoint: str) -> str:
    """The name of an endpoint's engine, which all its models share; without credentials."""
    parts = urlsplit(endpoint)
    name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    # Its key must not be one of another engine's.
    return f"{name}/" if name.endswith(FLIGHT_PARTS) else name


class EngineFlights:
    """The engines of one deployment. Synchronous and thread-safe, one round trip per method.

    Every method may be repeated, and raises RedisUnavailable or RedisFull.
    """

    def __init__(self, ledger: Ledger, settings: EngineSettings, *, lease_s: float) -> None:
        self._ledger = ledger
        self._settings = settings
        self._lease_s = lease_s

    def exchange(
        self,
        name: str,
        *,
        ended: Sequence[tuple[str, int]] = (),
        held: Sequence[InFlight] = (),
        asking: Sequence[InFlight] = (),
        grew: int = 0,
    ) -> FlightAnswer:
        """Report `ended` (id, mean context) and `held` ones, and ask for those in `asking`.

        What is held or asks has to be repeated before its lease ends.
        """
        settings = self._settings
        answer = self._ledger.call(
            "flights",
            name=name,
            lease_s=self._lease_s,
            patience_s=min(self._lease_s, 4 * settings.interval_s + 2),
            interval_s=settings.interval_s,
            probe_s=PROBE_S,
            kv_tokens=settings.kv_tokens,
            fill=settings.fill,
            least=settings.min_trajectories,
            grew=grew,
            state_ttl_s=_STATE_TTL_S,
            ended=ended,
            held=[(each.id, each.since, each.tokens) for each in held],
            asking=[(each.id, each.since, each.tokens, each.known) for each in asking],
        )
        turn = answer.turn.decode()
        order = ReadOrder(turn, answer.memo.decode(), answer.grown, answer.bound) if turn else None
        return FlightAnswer(
            verdict=answer.verdict.decode(),
            at=answer.at.decode(),
            granted=frozenset(each.decode() for each in answer.granted),
            stopped=frozenset(each.decode() for each in answer.stopped),
            order=order,
            absent_s=float(answer.left_s),
        )

    def report(
        self,
        name: str,
        order: ReadOrder,
        *,
        kv_tokens: int | None = None,
        level: float = 0.0,
        memo: str = "",
        absent_s: float | None = None,
    ) -> bool:
        """Report a reading; returns False if a later one supersedes it.

        Without `kv_tokens` it has failed: once the last one no longer counts, the endpoint is not
        asked again for `absent_s`, None = the setting.
        """
        return bool(
            self._ledger.call(
                "flights_read",
                name=name,
                turn=order.turn,
                kv=kv_tokens,
                level=level,
                memo=memo,
                hold_s=self._settings.hold_s,
                absent_s=self._settings.retry_s if absent_s is None else absent_s,
            )
        )


def engine_state(ledger: Ledger, name: str) -> EngineState | None:
    """The state of an engine; None = unknown."""
    key = ledger.key(f"flights:{name}")
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        pipe.hgetall(key)
        pipe.hvals(f"{key}:tokens")
        pipe.zcard(f"{key}:waiting")
        raw, tokens, waiting = pipe.execute()
    if not raw:
        return None
    found = {field.decode(): value.decode() for field, value in raw.items()}
    return EngineState(
        flying=len(tokens),
        waiting=waiting,
        tokens=sum(map(int, tokens)),
        kv_tokens=int(found["kv"]) if "kv" in found else None,
        level=float(found["level"]) if "level" in found else None,
        memo=json.loads(found.get("memo") or "{}"),
    )


def engine_names(ledger: Ledger) -> list[str]:
    """Names of all engines with state, sorted."""
    prefix = ledger.key("flights:")
    with explained(ledger.url):
        found = ledger.client.scan_iter(f"{prefix}*", count=1000, _type="HASH")
        names = {key.decode().removeprefix(prefix) for key in found}
    return sorted(name for name in names if not name.endswith(FLIGHT_PARTS))
