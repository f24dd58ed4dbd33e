"""What a run or the fleet got for the time of its slots and its money, and what it lost.

Every second for which a slot was leased has exactly one account. Workers report what ended with
them every few seconds; the ledger charges the leases of dead workers, and knows how long all leases
of a run were. What a worker had not reported when it died is `unaccounted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.keyspace.deployment import LIFE_TTL_S
from hermes_queue.ledger.accounts.fields import LOST, MEASURED, WORK
from hermes_queue.ledger.answers import number_in
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger

UNACCOUNTED = "unaccounted"

Fields = Mapping[str, float]
"""Sums by the names in `fields.py`."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Accounts of all leases that have ended, of a run, of the fleet or of a window."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """By account; their sum is `leased_s`. Those of `WORK` are of attempts that count."""
    attempts: Mapping[str, float] = field(default_factory=dict)
    """By outcome, as the following."""
    tokens: Mapping[str, float] = field(default_factory=dict)
    model_usd: Mapping[str, float] = field(default_factory=dict)
    slot_usd: Mapping[str, float] = field(default_factory=dict)
    scored: float = 0.0
    """Trajectories with a score that count; not of dropped groups, and not stale ones."""
    passed: float = 0.0
    """With full score, of all that were scored."""
    all_scored: float = 0.0
    score_sum: float = 0.0
    drift: Mapping[str, float] = field(default_factory=dict)
    """Turns by the names of `k|` in `fields.py`."""
    histogram: tuple[float, ...] = ()
    """Scores from n tenths on, for n from 0 to 10."""

    @property
    def leased_s(self) -> float:
        """Seconds for which slots were leased."""
        return sum(self.seconds.values())

    @property
    def work_s(self) -> float:
        """Those of attempts that count."""
        return sum(self.seconds.get(name, 0.0) for name in WORK)

    @property
    def lost(self) -> list[tuple[str, float]]:
        """Accounts of time that came to nothing, the largest first."""
        found = [(name, s) for name, s in self.seconds.items() if name not in WORK and s > 0]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))

    @property
    def usd(self) -> float:
        """US dollars of models and slots, as far as the prices are known."""
        return sum(self.model_usd.values()) + sum(self.slot_usd.values())

    @property
    def per_slot_hour(self) -> float | None:
        """Scored trajectories for an hour of one slot; None before any lease has ended."""
        return 3600 * self.scored / self.leased_s if self.leased_s > 0 else None

    @property
    def per_usd(self) -> float | None:
        """Scored trajectories for a US dollar; None if nothing cost anything."""
        return self.scored / self.usd if self.usd > 0 else None

    @property
    def pass_rate(self) -> float | None:
        """Share of the scored ones that passed."""
        return self.passed / self.all_scored if self.all_scored else None

    @property
    def mean_score(self) -> float | None:
        """Of all that were scored."""
        return self.score_sum / self.all_scored if self.all_scored else None

    @property
    def tokens_thrown_away(self) -> float:
        """Tokens of attempts that were not measured."""
        return sum(count for outcome, count in self.tokens.items() if outcome != MEASURED)


def goodput_of(fields: Fields, *, leased_s: float = 0.0) -> Goodput:
    """Read the sums; `leased_s` is how long all leases were by the ledger, 0 = unknown.

    The parts of attempts that were lost later are not known one by one: they are taken off the
    parts of all measured ones in proportion.
    """
    kinds = _by_kind(fields)
    seconds = {name: max(0.0, s) for name, s in kinds["s"].items()}
    measured_s = sum(seconds.get(name, 0.0) for name in WORK)
    later = {name: max(0.0, kinds["l"].get(name, 0.0)) for name in LOST}
    too_much = min(1.0, measured_s / sum(later.values())) if any(later.values()) else 1.0
    later = {name: s * too_much for name, s in later.items() if s}
    share = 1.0 - sum(later.values()) / measured_s if measured_s else 1.0
    seconds = {name: s * share if name in WORK else s for name, s in seconds.items()} | later
    if (left_s := leased_s - sum(seconds.values())) > 0:
        seconds[UNACCOUNTED] = left_s
    counts, scores = kinds["c"], kinds["h"]
    not_counted = sum(kinds["d"].get(name, 0.0) for name in LOST)
    return Goodput(
        seconds=seconds,
        attempts=kinds["n"],
        tokens=kinds["tok"],
        model_usd=kinds["usd"],
        slot_usd=kinds["box"],
        scored=max(0.0, counts.get("scored", 0.0) - not_counted),
        passed=counts.get("passed", 0.0),
        all_scored=counts.get("scored", 0.0),
        score_sum=counts.get("score", 0.0),
        drift=kinds["k"],
        histogram=tuple(scores.get(str(n), 0.0) for n in range(11)),
    )


def _by_kind(fields: Fields) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {
        kind: {} for kind in ("s", "l", "d", "n", "tok", "usd", "box", "c", "h", "k")
    }
    for name, value in fields.items():
        kind, _, rest = name.partition("|")
        if kind in found and value == value:
            found[kind][rest] = value
    return found


def goodput_of_run(ledger: Ledger, run_id: str) -> Goodput:
    """Of one run; empty if nothing of it has ended. Raises RedisUnavailable."""
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        pipe.hgetall(ledger.key(f"goodput:{run_id}"))
        pipe.hget(ledger.key(f"run:{run_id}"), "spent:slot_s")
        fields, leased_s = pipe.execute()
    return goodput_of(sums_of(fields), leased_s=number_in(leased_s))


def goodput_of_fleet(ledger: Ledger) -> Goodput:
    """Of the deployment over its life. Raises RedisUnavailable."""
    return goodput_of(fleet_fields(ledger))


def fleet_fields(ledger: Ledger) -> dict[str, float]:
    """The sums of the deployment over its life. Raises RedisUnavailable."""
    with explained(ledger.url):
        fields: Any = ledger.client.hgetall(ledger.key("goodput"))
    return sums_of(fields)


def sums_of(raw: Mapping[bytes, bytes]) -> dict[str, float]:
    """The fields of a hash of sums."""
    return {name.decode(errors="replace"): number_in(value) for name, value in raw.items()}


def add_report(
    ledger: Ledger,
    owner: str,
    number: int,
    *,
    counts: Iterable[tuple[str, str, float]],
    moments: Iterable[tuple[str, str, float]],
    slow: Iterable[tuple[str, str, float]],
) -> None:
    """Add a worker's report: (run, field, sum) each; of `slow` (run, name, seconds).

    A report with a `number` that was counted before changes nothing.

    Raises:
        RedisUnavailable, RedisFull: repeat it under the same number.
    """
    ledger.call(
        "goodput",
        owner=owner,
        number=number,
        life_ttl_s=LIFE_TTL_S,
        run_ttl_s=RUN_TTL_S,
        counts=list(counts),
        moments=list(moments),
        slow=list(slow),
    )
