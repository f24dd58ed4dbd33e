"""Lanes: those that are known, their circuit breakers, and the manual pause.

A provider that is down or an image that is broken would use up the retries of the whole queue. So a
lane whose attempts keep failing of one cause pauses itself: its breaker opens. `begin` holds the
jobs of such a lane; they wait in `delayed` and use no attempt. What a model's endpoint does wrong
opens the breaker of this endpoint in the lane, and holds the jobs that call this model there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hermes_queue.errors import CAUSES, printable
from hermes_queue.keyspace.connection import explained, masked
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.models import AgentSpec
from hermes_queue.settings import BreakerSettings

KNOWN_S = 30 * 86400
"""Seconds after the last job in which a lane is remembered."""
PAUSE_S = 90 * 86400
"""Expiry of a manual pause: as long as runs are kept."""
LABEL_CHARACTERS = 200


def causes_of(breaker: Literal["lane", "endpoint"]) -> list[str]:
    """Causes that the breakers of lanes, or of endpoints, count."""
    return [name for name, cause in CAUSES.items() if cause.breaker == breaker]


class Watched(NamedTuple):
    """What has a breaker: a lane, or an endpoint and model that jobs of the lane name."""

    lane: str
    endpoint: str = ""
    """As in `endpoint.lua`; "" = the lane itself."""
    label: str = ""
    """The endpoint, for people."""

    @classmethod
    def endpoint_of(cls, lane: str, agent: AgentSpec) -> Watched | None:
        """The endpoint and model of an agent; None if it names no model."""
        if not agent.model:
            return None
        named = f"{agent.base_url or ''}\n{agent.model}"
        digest = hashlib.sha1(printable(named).encode(), usedforsecurity=False).hexdigest()
        where = masked(agent.base_url) if agent.base_url else "the endpoint of the workers"
        return cls(lane, digest, f"{agent.model[:100]} at {where}"[:LABEL_CHARACTERS])

    @property
    def breaker(self) -> str:
        """Its part of the key of the breaker."""
        return f"{self.lane}:endpoint:{self.endpoint}" if self.endpoint else self.lane


class EndedAttempts(NamedTuple):
    """Attempts that ended in the same way."""

    attempts: int
    message: str = ""
    """Of the last one."""
    run_id: str = ""
    """Run of the last one."""


@dataclass(frozen=True, slots=True)
class LaneState:
    """The state of a lane's breaker; `state` is closed, open or half_open."""

    lane: str
    state: str = "closed"
    cause: str = ""
    message: str = ""
    opened: float = 0.0
    """Unix seconds of Redis' clock, as `until`."""
    until: float = 0.0
    endpoint: str = ""
    """The model and endpoint whose jobs are held; "" = the whole lane is."""


class Breakers:
    """The breakers of one deployment's lanes."""

    def __init__(self, ledger: Ledger, settings: BreakerSettings | None = None) -> None:
        self._ledger = ledger
        self._settings = settings or BreakerSettings()

    def record(self, watched: Watched, outcomes: Mapping[str, EndedAttempts]) -> str:
        """Count attempts that ended; returns "open" or "closed" if that changed the state.

        `outcomes`: attempts by cause ("" = no failure).

        Raises:
            RedisUnavailable, RedisFull: they may be counted already.
        """
        entered = self._ledger.call(
            "breaker",
            lane=watched.lane,
            breaker=watched.breaker,
            endpoint=watched.endpoint,
            label=watched.label,
            causes=",".join(causes_of("endpoint" if watched.endpoint else "lane")),
            ended=[(cause, n, text[:500], run) for cause, (n, text, run) in outcomes.items()],
            **self._settings.model_dump(),
        )
        return str(entered.decode())

    def state(self, lane: str) -> LaneState:
        """The current state of a lane's breaker."""
        return self.state_of(Watched(lane))

    def state_of(self, watched: Watched) -> LaneState:
        """The current state of the breaker of a lane or an endpoint."""
        names = ("state", "cause", "message", "opened", "until")
        state, cause, text, *times = self._ledger.hash_fields(f"lane:{watched.breaker}", *names)
        opened, until = (float(each or 0) for each in times)
        lane, label = watched.lane, watched.label
        return LaneState(lane, state or "closed", cause, text, opened, until, label)

    def open_endpoints(self, lane: str) -> list[LaneState]:
        """States of the endpoints whose breakers are not closed."""
        states = (self.state_of(each) for each in self._endpoints(lane))
        return [state for state in states if state.state != "closed"]

    def _endpoints(self, lane: str) -> list[Watched]:
        with explained(self._ledger.url):
            found: Any = self._ledger.client.hgetall(self._ledger.key(f"lane:{lane}:endpoints"))
        texts = sorted(
            (k.decode(errors="replace"), v.decode(errors="replace")) for k, v in found.items()
        )
        return [Watched(lane, digest, label) for digest, label in texts]

    def close(self, lane: str) -> bool:
        """Close the breakers of a lane and its endpoints by hand; returns whether one was open."""
        names = [f"lane:{each.breaker}" for each in (Watched(lane), *self._endpoints(lane))]
        names += [f"{name}:outcomes" for name in names]
        with explained(self._ledger.url):
            keys = [self._ledger.key(name) for name in (*names, f"lane:{lane}:endpoints")]
            answer: Any = self._ledger.client.delete(*keys)
        return bool(answer)


def note_lanes(ledger: Ledger, lanes: Iterable[str]) -> None:
    """Remember that jobs were sent to these lanes.

    Raises:
        RedisUnavailable, RedisFull: they may be remembered.
    """
    if names := sorted(set(lanes)):
        ledger.call("lanes_note", known_s=KNOWN_S, names=names)


def known_lanes(ledger: Ledger) -> set[str]:
    """Lanes to which any producer sent a job in the last month."""
    with explained(ledger.url):
        found: Any = ledger.client.zrange(ledger.key("lanes"), 0, -1)
    return {name.decode(errors="replace") for name in found}


def pause_lane(ledger: Ledger, lane: str, reason: str = "") -> None:
    """Begin no more jobs of a lane, on any worker, until its breaker is closed. Idempotent.

    Running trajectories continue; waiting jobs use no attempt.
    """
    message = reason or "paused by an operator"
    ledger.call("lane_pause", lane=lane, reason=message, pause_s=PAUSE_S)
