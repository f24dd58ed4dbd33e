"""Circuit breakers: a lane whose attempts keep failing of one cause pauses itself.

A provider that is down or an image that is broken would otherwise use up the retries of the
whole queue. `begin` holds the jobs of a lane whose breaker is open; they wait in `delayed` and
use no attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import CAUSES
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.settings import BreakerSettings

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

        Args:
            lane: where they ran.
            outcomes: by cause ("" = no failure) the number of attempts and an example's message.

        Raises:
            RedisUnavailable, RedisFull: they may be counted already.
        """
        section = self._settings
        entered = self._ledger.call(
            "breaker",
            lane=lane,
            window_s=section.window_s,
            rate=section.rate,
            min_failures=section.min_failures,
            open_s=section.open_s,
            open_max_s=section.open_max_s,
            causes=COUNTED,
            ended=[(cause, count, text[:500]) for cause, (count, text) in outcomes.items()],
        )
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
