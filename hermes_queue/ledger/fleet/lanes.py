"""Lanes: those that are known, their circuit breakers, and the manual pause.

A provider that is down or an image that is broken would use up the retries of the whole queue. So a
lane whose attempts keep failing of one cause pauses itself: its breaker opens. `begin` holds the
jobs of such a lane; they wait in `delayed` and use no attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import CAUSES
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.settings import BreakerSettings

KNOWN_S = 30 * 86400
"""Seconds after the last job in which a lane is remembered."""
PAUSE_S = 90 * 86400
"""Expiry of a manual pause: as long as runs are kept."""
COUNTED = ",".join(name for name, cause in CAUSES.items() if cause.opens_breaker)


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


class Breakers:
    """The breakers of one deployment's lanes."""

    def __init__(self, ledger: Ledger, settings: BreakerSettings | None = None) -> None:
        self._ledger = ledger
        self._settings = settings or BreakerSettings()

    def record(self, lane: str, outcomes: Mapping[str, tuple[int, str]]) -> str:
        """Count attempts that ended; returns "open" or "closed" if that changed the state.

        `outcomes`: by cause ("" = no failure) the number of attempts and an example's message.

        Raises:
            RedisUnavailable, RedisFull: they may be counted already.
        """
        ended = [(cause, count, text[:500]) for cause, (count, text) in outcomes.items()]
        limits = self._settings.model_dump()
        entered = self._ledger.call("breaker", lane=lane, causes=COUNTED, ended=ended, **limits)
        return str(entered.decode())

    def state(self, lane: str) -> LaneState:
        """The current state of a lane's breaker."""
        names = ("state", "cause", "message", "opened", "until")
        state, cause, text, *times = self._ledger.hash_fields(f"lane:{lane}", *names)
        opened, until = (float(each or 0) for each in times)
        return LaneState(lane, state or "closed", cause, text, opened, until)

    def close(self, lane: str) -> bool:
        """Close a lane's breaker by hand; returns whether it was open."""
        with explained(self._ledger.url):
            keys = [self._ledger.key(f"lane:{lane}"), self._ledger.key(f"lane:{lane}:outcomes")]
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
