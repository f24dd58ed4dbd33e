"""How many slots each lane wants, for whoever starts and ends workers by it.

Only workers put back jobs that are set aside: for a retry, a circuit breaker, a budget, a trainer,
or because their worker is dead. So where such jobs are, a fleet must not come down to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_queue.cli.overview import Lane
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.queues import lanes_with_quarantine, queue_keys

_ASIDE = ("delayed", "paced", "leases", "sched:blocked")
"""Sorted sets of jobs that no message stands for, and of limits that jobs wait for."""


def wanted_slots(ledger: Ledger, lanes: Sequence[Lane], now: float) -> Mapping[str, int]:
    """Slots that each of these lanes wants as of `now` (Unix time of Redis, s)."""
    keys = [_suspects(lane.name) for lane in lanes]
    with ledger.client.pipeline(transaction=False) as pipe:
        for key in _ASIDE:
            pipe.zcard(ledger.key(key))
        for lane in lanes:
            pipe.exists(ledger.key(f"sched:open:{lane.name}"))
        for each in keys:
            for key in each:
                pipe.llen(ledger.key(key))
        # A key that we may not read, or that is of another type, hides no other.
        answers: list[Any] = pipe.execute(raise_on_error=False)
    counts = iter(each if isinstance(each, int) else 0 for each in answers)
    is_aside = any([next(counts) for _ in _ASIDE])
    # Of a lane that is paused, messages are used up while its jobs wait.
    waiting = {lane.name: max(lane.depth, next(counts)) for lane in lanes}
    wanted = {
        lane.name: _of_lane(
            lane, waiting[lane.name], suspects=sum([next(counts) for _ in each]), now=now
        )
        for lane, each in zip(lanes, keys, strict=True)
    }
    if is_aside and not any(wanted[lane.name] for lane in lanes if lane.workers):
        return {name: max(1, slots) for name, slots in wanted.items()}
    return wanted


def _of_lane(lane: Lane, waiting: int, *, suspects: int, now: float) -> int:
    if lane.breaker.state != "closed":
        # More workers would find nothing to do; but one has to try whether things are well again.
        waiting = min(1, waiting) if lane.breaker.until <= now else 0
    return max(lane.running + waiting, min(1, suspects))


def _suspects(lane: str) -> list[str]:
    """The lists of suspects: workers of the lane start processes of their own for these."""
    others = (name for name in lanes_with_quarantine(lane) if name != lane)
    return [key for name in others for key in queue_keys(name).all]
