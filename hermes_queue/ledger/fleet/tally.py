"""Recent counts of the fleet: attempts by cause of failure, and ended trajectories by run; totals.

Workers count with their beat, in buckets of two minutes that expire after an hour and a half.
For people and estimates: if an answer of Redis is lost, a count may be added twice. The totals over
the life of the deployment are exact, because the ledger's scripts count them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

BUCKET_S = 120
KEPT_S = 5400

Totals = Mapping[tuple[str, ...], float]
"""By (name, label, ...), e.g. ("trajectories", "gsm8k", "scored"); see `include/totals.lua`."""

_ATTEMPT = "attempt:"
_ENDED = "ended:"
_GOOD = "good:"
"""Before sums of the accounts of slots, which have scripts of their own: `ledger/accounts`."""


def totals(ledger: Ledger) -> Totals:
    """All totals; they start at zero with an empty Redis. One round trip.

    Raises:
        RedisUnavailable: Redis does not answer.
    """
    with explained(ledger.url):
        raw: Any = ledger.client.hgetall(ledger.key("totals"))
    return {tuple(field.decode().split("|")): float(value) for field, value in raw.items()}


@dataclass(frozen=True, slots=True)
class Lately:
    """Counts of a window that ends now."""

    window_s: float
    """Length of the window, in whole buckets."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """By cause; "" = attempts without a failure."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """Trajectories published, by run."""
    accounts: Mapping[str, float] = field(default_factory=dict)
    """Sums of slots' accounts, by `ledger/accounts/fields.py`."""


class Tally:
    """The counts of one deployment."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def add(self, *, attempts: Mapping[str, int], ended: Mapping[str, int]) -> None:
        """Add counts, as in `Lately`.

        Raises:
            RedisUnavailable, RedisFull: they may be counted.
        """
        rows = [(_ATTEMPT + cause, count) for cause, count in attempts.items()]
        rows += [(_ENDED + run_id, count) for run_id, count in ended.items()]
        if rows:
            self._ledger.call("tally", bucket_s=BUCKET_S, kept_s=KEPT_S, counts=rows)

    def lately(self, window_s: float, *, now: float) -> Lately:
        """The counts of about the last `window_s` seconds; `now` is Redis' clock, unix seconds."""
        last = int(now // BUCKET_S)
        buckets = range(last - max(1, round(window_s / BUCKET_S)) + 1, last + 1)
        with explained(self._ledger.url), self._ledger.client.pipeline(transaction=False) as pipe:
            for bucket in buckets:
                pipe.hgetall(self._ledger.key(f"tally:{bucket}"))
            found = pipe.execute()
        attempts: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        good: dict[str, float] = {}
        for counts in found:
            for raw, count in counts.items():
                kind, _, name = raw.decode().partition(":")
                if kind + ":" == _GOOD:
                    good[name] = good.get(name, 0.0) + float(count)
                else:
                    (attempts if kind + ":" == _ATTEMPT else ended)[name] += int(count)
        covered_s = now - buckets[0] * BUCKET_S
        return Lately(covered_s, dict(attempts), dict(ended), good)
