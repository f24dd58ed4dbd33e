"""The course of a run over time, in intervals of which there are always few."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.accounts.goodput import sums_of
from hermes_queue.ledger.ledger import Ledger

_FIRST_WIDTH_S = 60.0


@dataclass(frozen=True, slots=True)
class Moment:
    """One interval in which something ended."""

    at: float
    """Its start: Unix seconds of Redis' clock."""
    width_s: float
    sums: dict[str, float]
    """ended, failed, scored, passed, score (their sum), tokens, usd, slot_s."""


def course_of(ledger: Ledger, run_id: str) -> list[Moment]:
    """The intervals of a run in order. Raises RedisUnavailable."""
    with explained(ledger.url):
        raw: Any = ledger.client.hgetall(ledger.key(f"series:{run_id}"))
    fields = sums_of(raw)
    width_s = fields.pop("width", 0.0) or _FIRST_WIDTH_S
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for name, value in fields.items():
        interval, _, kind = name.partition("|")
        if interval.isdigit():
            found[int(interval)][kind] = value
    return [Moment(n * width_s, width_s, sums) for n, sums in sorted(found.items())]


def slowest_of(ledger: Ledger, run_id: str, most: int = 10) -> list[tuple[str, str, float]]:
    """The longest trajectories of a run: (item, trajectory id, seconds of the last attempt)."""
    with explained(ledger.url):
        raw: Any = ledger.client.zrevrange(
            ledger.key(f"slowest:{run_id}"), 0, most - 1, withscores=True
        )
    found = []
    for name, seconds in raw:
        item, _, trajectory_id = name.decode(errors="replace").rpartition(" ")
        found.append((item, trajectory_id, float(seconds)))
    return found
