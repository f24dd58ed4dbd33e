"""Histograms, and the numbers of runs."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_plugins.view.index.cursors import PageError
from hermes_plugins.view.index.filters import Filter
from hermes_plugins.view.records.rows import STAGES

_BINS = 20
_VALUES = 10
"""Up to this many different values are shown one by one."""
_NEWEST = 5000
"""Rows of a run from which the times of its stages are taken."""
_LISTED = 1000

HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "score": ("score", "score"),
    "turns": ("turns", "turns"),
    "seconds": ("seconds", "seconds"),
    "tokens": ("completion_tokens", "completion"),
    "cost": ("cost", "cost"),
    "messages": ("messages", "messages"),
    "errors": ("calls_error", "errors"),
}
"""Name in `of=` -> (column, field of the filter language)."""


def histogram(connection: sqlite3.Connection, query: Filter, of: str, upto: int) -> dict[str, Any]:
    """How many rows have which value of `of`, one of `HISTOGRAMS`.

    Returns:
        `of`; `bins`: each with `from`, `to`, `count`, and `q`, the terms that meet its rows. A bin
        is half open, but for the last one; if `from` equals `to`, all its rows have that value.
        `unmeasured`: rows without a value.

    Raises:
        PageError: there is no such histogram.
    """
    if of not in HISTOGRAMS:
        raise PageError(f"there is no histogram of {of[:50]!r}", f"one of {', '.join(HISTOGRAMS)}")
    column, field = HISTOGRAMS[of]
    where, values = f"n <= ? AND ({query.where})", (upto, *query.parameters)
    ends = f"SELECT min({column}), max({column}), count({column}), count(*) FROM t WHERE {where}"
    low, high, measured, count = connection.execute(ends, values).fetchone()
    bins: list[dict[str, Any]] = []
    if measured:
        start, width = _nice(float(low), float(high))
        last = _BINS * 4
        sql = (
            f"SELECT min(CAST(({column} - ?) / ? AS INTEGER), {last}) AS bin, count(*), "
            f"min({column}), max({column}) FROM t WHERE {where} AND {column} IS NOT NULL "
            "GROUP BY bin"
        )
        found = connection.execute(sql, (start, width, *values)).fetchall()
        bins = _bins(field, found, start, width)
    return {"of": of, "bins": bins, "unmeasured": count - measured}


def runs(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """The runs in the index with their numbers, newest first."""
    sql = f"{_RUN_FIGURES} WHERE run IS NOT NULL GROUP BY run ORDER BY max(created) DESC LIMIT ?"
    return [_figures(found) for found in connection.execute(sql, (_LISTED,))]


def run(connection: sqlite3.Connection, run_id: str) -> dict[str, Any] | None:
    """One run; None if the index has no row of it.

    `stages` are of its newest 5,000 rows.
    """
    found = connection.execute(f"{_RUN_FIGURES} WHERE run = ? GROUP BY run", (run_id,)).fetchone()
    if found is None:
        return None
    failures = connection.execute(
        "SELECT cause, stage, count(*) AS c FROM t WHERE run = ? AND cause IS NOT NULL "
        "GROUP BY cause, stage ORDER BY c DESC LIMIT ?",
        (run_id, _LISTED),
    ).fetchall()
    return {
        **_figures(found),
        "envs": _by(connection, "env", run_id),
        "models": _by(connection, "model", run_id),
        "policies": _by(connection, "policy_newest", run_id),
        "failures": [{"cause": c, "stage": s, "count": n} for c, s, n in failures],
        "stages": _stages(connection, run_id),
    }


_RUN_FIGURES = (
    "SELECT run, count(*), count(score), sum(status = 'failed'), avg(score), sum(cost), "
    "min(created), max(finished), sum(flags != '') FROM t"
)


def _figures(found: Sequence[Any]) -> dict[str, Any]:
    names = ("run", "count", "scored", "failed", "mean", "cost", "created", "finished", "flagged")
    return dict(zip(names, found, strict=True))


def _by(connection: sqlite3.Connection, column: str, run_id: str) -> list[dict[str, Any]]:
    sql = (
        f"SELECT {column}, count(*) AS c, avg(score) FROM t WHERE run = ? AND {column} IS NOT NULL "
        f"GROUP BY {column} ORDER BY c DESC LIMIT ?"
    )
    found = connection.execute(sql, (run_id, _LISTED)).fetchall()
    return [{"name": name, "count": count, "mean": mean} for name, count, mean in found]


def _stages(connection: sqlite3.Connection, run_id: str) -> dict[str, dict[str, float]]:
    columns = ", ".join(f"s_{stage}" for stage in STAGES)
    sql = f"SELECT {columns} FROM t WHERE run = ? ORDER BY created DESC LIMIT ?"
    rows = connection.execute(sql, (run_id, _NEWEST)).fetchall()
    found: dict[str, dict[str, float]] = {}
    for stage, values in zip(STAGES, zip(*rows, strict=True), strict=False):
        known = sorted(value for value in values if value is not None)
        if known:
            found[stage] = {"p50": _quantile(known, 0.5), "p90": _quantile(known, 0.9)}
    return found


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _nice(low: float, high: float) -> tuple[float, float]:
    """Start and width of at most about `_BINS` bins from `low` to `high`, at round numbers."""
    span = high - low
    if not 0 < span < math.inf:
        return low, 1.0
    exact = span / _BINS
    power = 10.0 ** math.floor(math.log10(exact)) if exact > 1e-300 else exact
    width = next((step * power for step in (1, 2, 2.5, 5, 10) if step * power >= exact), exact)
    start = math.floor(low / width) * width
    return (start, width) if math.isfinite(start) and start + width > start else (low, exact)


def _bins(
    field: str, found: Sequence[Sequence[Any]], start: float, width: float
) -> list[dict[str, Any]]:
    if len(found) <= _VALUES and all(low == high for _, _, low, high in found):
        return [
            {"from": low, "to": low, "count": count, "q": f"{field}:{low!r}"}
            for _, count, low, _ in found
        ]
    counts = {int(bin_): count for bin_, count, _, _ in found}
    top = max(counts)
    bins = []
    for bin_ in range(min(counts), top + 1):
        low, high = _edge(start, width, bin_), _edge(start, width, bin_ + 1)
        terms = f"{field}:>={low!r} {field}:{'<=' if bin_ == top else '<'}{high!r}"
        bins.append({"from": low, "to": high, "count": counts.get(bin_, 0), "q": terms})
    return bins


def _edge(start: float, width: float, at: int) -> float:
    return float(f"{start + at * width:.12g}")
