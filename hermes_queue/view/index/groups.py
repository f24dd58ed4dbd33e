"""Groups with the mean and the deviation of their scores."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import pstdev
from typing import Any

from hermes_queue.view.index.cursors import PageError, encode_cursor
from hermes_queue.view.index.filters import Filter
from hermes_queue.view.index.pages import Sort

GROUP_SORTS: Mapping[str, str] = {
    "created": "created",
    "mean": "mean",
    "std": "variance",
    "count": "count",
    "size": "size",
    "failed": "failed",
    "flagged": "flagged",
}
_OWN = "FILTER (WHERE extra = 0)"
"""Extras are samples outside the group, of which neither its size nor its mean knows."""
_NAMES = (
    *("grp", "run", "env", "instance", "size", "count", "scored", "failed", "flagged", "mean"),
    *("variance", "created", "turns", "cost"),
)
_GROUPS = f"""
SELECT grp, min(run) AS run, min(env) AS env, min(instance) AS instance, max(size) AS size,
  count(*) {_OWN} AS count, count(score) {_OWN} AS scored,
  count(*) FILTER (WHERE extra = 0 AND status = 'failed') AS failed,
  count(*) FILTER (WHERE flags != '') AS flagged, round(avg(score) {_OWN}, 12) AS mean,
  round(avg(score * score) {_OWN} - avg(score) {_OWN} * avg(score) {_OWN}, 12) AS variance,
  min(created) AS created, avg(turns) {_OWN} AS turns, sum(cost) AS cost
FROM t WHERE grp IS NOT NULL AND n <= ? AND ({{where}}) GROUP BY grp"""


@dataclass(frozen=True, slots=True)
class GroupPage:
    """One page of groups."""

    groups: list[dict[str, Any]]
    next: str | None
    count: int
    upto: int


def group_sort(text: str) -> Sort:
    """The order of groups named `text`, such as `-std`. Raises PageError: it is unknown."""
    name = text.removeprefix("-")
    if name not in GROUP_SORTS:
        known = ", ".join(GROUP_SORTS)
        raise PageError(f"groups cannot be sorted by {name[:50]!r}", f"one of {known}")
    return Sort(name, GROUP_SORTS[name], text.startswith("-"))


def groups(
    connection: sqlite3.Connection,
    query: Filter,
    sort: Sort,
    key: tuple[Any, str] | None,
    upto: int,
    limit: int,
) -> list[dict[str, Any]]:
    """At most `limit` groups behind `key` in the order, those without a value last.

    Their numbers are those of the rows that the filter meets.
    """
    column, compare = sort.column, "<" if sort.descending else ">"
    condition = "1"
    values: tuple[Any, ...] = ()
    if key is not None and key[0] is None:
        condition, values = f"{column} IS NULL AND grp > ?", (key[1],)
    elif key is not None:
        condition = f"({column} IS NULL OR {column} {compare} ? OR ({column} = ? AND grp > ?))"
        values = (key[0], key[0], key[1])
    sql = (
        f"SELECT * FROM ({_GROUPS.format(where=query.where)}) WHERE {condition} "
        f"ORDER BY {column} IS NULL, {column} {sort.direction}, grp LIMIT ?"
    )
    rows = connection.execute(sql, (upto, *query.parameters, *values, limit)).fetchall()
    found = [dict(zip(_NAMES, row, strict=True)) for row in rows]
    scores = _scores(connection, query, upto, [each["grp"] for each in found])
    for each in found:
        own = scores.get(each["grp"])
        each["std"] = _deviation(own) if own else None
    return found


def shown_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group that `groups` returned, as pages show it."""
    rest = {name: value for name, value in group.items() if name not in ("grp", "variance")}
    return {"group": group["grp"], **rest}


def _deviation(scores: list[float]) -> float | None:
    try:
        return pstdev(scores)
    except OverflowError:
        return None


def group_count(connection: sqlite3.Connection, query: Filter, upto: int) -> int:
    """Number of groups with rows that the filter meets."""
    sql = f"SELECT count(DISTINCT grp) FROM t WHERE n <= ? AND ({query.where})"
    return int(connection.execute(sql, (upto, *query.parameters)).fetchone()[0])


def _scores(
    connection: sqlite3.Connection, query: Filter, upto: int, names: list[str]
) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    marks = ", ".join("?" * len(names))
    sql = (
        f"SELECT grp, score FROM t WHERE grp IN ({marks}) AND extra = 0 AND score IS NOT NULL "
        f"AND n <= ? AND ({query.where})"
    )
    for group, score in connection.execute(sql, (*names, upto, *query.parameters)):
        found[group].append(score)
    return found


def group_cursor(group: Mapping[str, Any], sort: Sort) -> str:
    """The position of a group as an opaque text for `after=`."""
    return encode_cursor(sort.text(), group[sort.column], group["grp"])
