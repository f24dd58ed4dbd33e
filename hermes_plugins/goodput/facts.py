"""What a report of a run says: read from the ledger and the stream, while it runs or after it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_queue.bodies.summary import member_summaries
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import Ledger, RunInfo, Runs
from hermes_queue.ledger.accounts.goodput import Goodput, goodput_of_run
from hermes_queue.ledger.accounts.series import Moment, course_of, slowest_of

_COLUMNS_MOST = 120
"""Intervals of the course that are drawn."""
_ENTRIES_MOST = 2000
"""Newest entries of the stream that are looked at for the age of policies."""
_ENTRIES_AT_ONCE = 100
_LAG_MOST = 10


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a report shows."""

    at: float
    """When it was made: Unix seconds of Redis' clock."""
    info: RunInfo
    good: Goodput
    course: tuple[Moment, ...]
    """Intervals of equal length without a gap."""
    slowest: tuple[tuple[str, str, float], ...]
    """Item, trajectory and seconds of its last attempt."""
    lags: Mapping[int, int]
    """Published members by the age of their policy in versions, as far as the stream has them;
    10 = that or more."""

    @property
    def causes(self) -> list[tuple[str, float, float]]:
        """Failures by cause: (cause, attempts that were tried again, ends)."""
        retries, ends = Counter[str](), Counter[str]()
        for outcome, count in self.good.attempts.items():
            kind, _, cause = outcome.partition(":")
            if kind == "retry":
                retries[cause] += int(count)
            elif kind in ("failed", "refill"):
                ends[cause or "(refilled)"] += int(count)
        names = sorted({*retries, *ends}, key=lambda name: (-retries[name] - ends[name], name))
        return [(name, retries[name], ends[name]) for name in names]


def report_of(ledger: Ledger, run_id: str) -> RunReport:
    """Read everything about a run.

    Raises:
        ConfigurationError: the run is unknown.
        RedisUnavailable: Redis does not answer.
    """
    info = Runs(ledger).get(run_id)
    with explained(ledger.url):
        client: Any = ledger.client
        seconds, _ = client.time()
    return RunReport(
        at=float(seconds),
        info=info,
        good=goodput_of_run(ledger, run_id),
        course=tuple(drawn(course_of(ledger, run_id))),
        slowest=tuple(slowest_of(ledger, run_id)),
        lags=_lags(ledger, run_id),
    )


def drawn(course: list[Moment]) -> list[Moment]:
    """The course in at most `_COLUMNS_MOST` intervals of equal length, empty ones too."""
    if not course:
        return []
    width_s, first = course[0].width_s, course[0].at
    count = round((course[-1].at - first) / width_s) + 1
    step_s = width_s * math.ceil(count / _COLUMNS_MOST)
    found: list[dict[str, float]] = [{} for _ in range(math.ceil(count * width_s / step_s))]
    for moment in course:
        sums = found[int((moment.at - first) / step_s)]
        for name, value in moment.sums.items():
            sums[name] = sums.get(name, 0.0) + value
    return [Moment(first + n * step_s, step_s, sums) for n, sums in enumerate(found)]


def _lags(ledger: Ledger, run_id: str) -> dict[int, int]:
    found: Counter[int] = Counter()
    client: Any = ledger.client
    last = "+"
    for _ in range(_ENTRIES_MOST // _ENTRIES_AT_ONCE):
        with explained(ledger.url):
            entries = client.xrevrange(ledger.key("results"), last, "-", count=_ENTRIES_AT_ONCE)
        for _, raw in entries:
            if raw.get(b"run_id") == run_id.encode():
                found.update(_lags_of({k.decode(): v.decode() for k, v in raw.items()}))
        if len(entries) < _ENTRIES_AT_ONCE:
            break
        last = f"({entries[-1][0].decode()}"
    return dict(sorted(found.items()))


def _lags_of(entry: Mapping[str, str]) -> list[int]:
    """Ages of the policies of a group's members, when it was published."""
    try:
        version = int(entry.get("policy_version", ""))
        members = [each or {} for each in member_summaries(entry)]
    except (KeyError, ValueError):
        return []
    oldest = [str(each.get("policy_oldest", "")).lstrip("v") for each in members]
    return [min(_LAG_MOST, max(0, version - int(o))) for o in oldest if o.isdigit() and len(o) < 16]
