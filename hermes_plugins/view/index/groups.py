"""Groups with the mean and the deviation of their scores."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import pstdev
from typing import Any

from hermes_plugins.view.index.cursors import PageError, encode_cursor
from hermes_plugins.view.index.filters import Filter
from hermes_plugins.view.index.pages import Sort

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
_MEAN = f"avg(score) {_OWN}"
_ORDERS = {
    "created": "min(created)",
    "mean": f"round({_MEAN}, 12)",
    "variance": f"round(avg(score * score) {_OWN} - {_MEAN} * {_MEAN}, 12)",
    "count": f"count(*) {_OWN}",
    "size": "max(size)",
    "failed": "count(*) FILTER (WHERE extra = 0 AND status = 'failed')",
    "flagged": "count(*) FILTER (WHERE flags != '')",
}
_FIGURES = {
    "run": "min(run)",
    "env": "min(env)",
    "instance": "min(instance)",
    **_ORDERS,
    "scored": f"count(score) {_OWN}",
    "turns": f"avg(turns) {_OWN}",
    "cost": "sum(cost)",
}


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
        f"SELECT * FROM (SELECT grp, {_ORDERS[column]} AS {column} FROM t WHERE grp IS NOT NULL "
        f"AND n <= ? AND ({query.where}) GROUP BY grp) WHERE {condition} "
        f"ORDER BY {column} IS NULL, {column} {sort.direction}, grp LIMIT ?"
    )
    rows = connection.execute(sql, (upto, *query.parameters, *values, limit)).fetchall()
    figures = _figures(connection, query, upto, [name for name, _ in rows])
    return [figures[name] for name, _ in rows if name in figures]


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


def _figures(
    connection: sqlite3.Connection, query: Filter, upto: int, names: list[str]
) -> dict[str, dict[str, Any]]:
    """All numbers of a few groups."""
    condition = f"grp IN ({', '.join('?' * len(names))}) AND n <= ? AND ({query.where})"
    values = (*names, upto, *query.parameters)
    columns = ", ".join(f"{sql} AS {name}" for name, sql in _FIGURES.items())
    sql = f"SELECT grp, {columns} FROM t WHERE {condition} GROUP BY grp"
    fields = ("grp", *_FIGURES)
    found = {row[0]: dict(zip(fields, row, strict=True)) for row in connection.execute(sql, values)}
    scores: dict[str, list[float]] = defaultdict(list)
    sql = f"SELECT grp, score FROM t WHERE {condition} AND extra = 0 AND score IS NOT NULL"
    for group, score in connection.execute(sql, values):
        scores[group].append(score)
    for name, figures in found.items():
        figures["std"] = _deviation(scores[name]) if scores[name] else None
    return found


def group_cursor(group: Mapping[str, Any], sort: Sort) -> str:
    """The position of a group as an opaque text for `after=`."""
    return encode_cursor(sort.text(), group[sort.column], group["grp"])
