"""Known lanes, and the manual pause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

KNOWN_S = 30 * 86400
"""How long a lane is remembered after the last job sent to it."""
PAUSE_S = 90 * 86400
"""How long a manual pause lasts if nobody ends it: as long as runs are kept."""


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
