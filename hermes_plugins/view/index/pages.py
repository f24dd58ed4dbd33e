"""Pages of rows by key: page 900 costs what page 1 does, and rows that come do not move it.

A page of `grep:` looks into the records of a filtered list, for a bounded time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hermes_plugins.view.index.cursors import PageError, decode_cursor, encode_cursor
from hermes_plugins.view.index.fields import SORTS
from hermes_plugins.view.index.filters import Filter
from hermes_plugins.view.records.rows import COLUMNS, STAGES, split

_SELECT = f"SELECT n, {', '.join(COLUMNS)} FROM t"
_PLACES = {name: at for at, name in enumerate(("n", *COLUMNS))}

Columns = tuple[Any, ...]
"""A row as SQLite returns it: `n`, and the fields of `IndexRow`."""


@dataclass(frozen=True, slots=True)
class Sort:
    """An order of rows, in which those without a value come last, whichever its direction."""

    name: str
    column: str
    descending: bool

    @classmethod
    def of(cls, text: str) -> Sort:
        """The order named `text`, such as `-created`. Raises PageError: it is unknown."""
        name = text.removeprefix("-")
        if name not in SORTS:
            known = ", ".join(SORTS)
            raise PageError(
                f"cannot be sorted by {name[:50]!r}", f"one of {known}, with - before it"
            )
        return cls(name, SORTS[name], text.startswith("-"))

    def reversed(self) -> Sort:
        """The opposite direction."""
        return Sort(self.name, self.column, not self.descending)

    @property
    def direction(self) -> str:
        """ASC or DESC."""
        return "DESC" if self.descending else "ASC"

    def text(self) -> str:
        """The name, with - if it descends."""
        return f"{'-' * self.descending}{self.name}"


@dataclass(frozen=True, slots=True)
class RowKey:
    """The position of a row in an order: the value of its column, and its number."""

    value: Any
    n: int

    def encode(self, sort: Sort) -> str:
        """The key as an opaque text for `after=`."""
        return encode_cursor(sort.text(), self.value, self.n)

    @classmethod
    def decode(cls, text: str, sort: Sort) -> RowKey:
        """The inverse of `encode`. Raises PageError: it is no cursor, or of another order."""
        return cls(*decode_cursor(text, sort.text(), int))


@dataclass(frozen=True, slots=True)
class RowPage:
    """One page of a list."""

    rows: list[dict[str, Any]]
    next: str | None
    """Cursor of the next page; None = this was the last one."""
    count: int
    """Number of all rows that the filter meets, `grep:` aside."""
    upto: int
    """Largest `n` of rows that are part of the list; pass it on."""
    scanned: int | None = None
    """With `grep:`: records that this page has looked into. Fewer rows than the limit with a `next`
    mean that its time was over, and that the next page goes on."""


def rows_after(
    connection: sqlite3.Connection,
    query: Filter,
    sort: Sort,
    key: RowKey | None,
    upto: int,
    limit: int,
    *,
    few: bool = False,
) -> list[Columns]:
    """At most `limit` rows behind `key` in the order.

    `few`: the filter meets few rows, so that sorting them is faster than to look for them along an
    index of the order.
    """
    found: list[Columns] = []
    valued = key is None or key.value is not None
    if valued:
        found = _run(connection, query, sort, key, upto, limit, few=few)
    if len(found) < limit:
        last = None if valued else key
        found += _run_unvalued(connection, query, sort, last, upto, limit - len(found))
    return found


def key_of(row: Columns, sort: Sort) -> RowKey:
    """The position of a row."""
    return RowKey(row[_PLACES[sort.column]], row[0])


def rows_before(
    connection: sqlite3.Connection, query: Filter, sort: Sort, key: RowKey, upto: int
) -> int:
    """Number of rows that stand before `key` in the order."""
    compare = ">" if sort.descending else "<"
    column = sort.column
    if key.value is None:
        condition = f"({column} IS NOT NULL OR n {compare} ?)"
        values: tuple[Any, ...] = (key.n,)
    else:
        condition = f"({column} {compare} ? OR ({column} = ? AND n {compare} ?))"
        values = (key.value, key.value, key.n)
    sql = f"SELECT count(*) FROM t WHERE n <= ? AND ({query.where}) AND {condition}"
    found = connection.execute(sql, (upto, *query.parameters, *values)).fetchone()
    return int(found[0])


def id_before(
    connection: sqlite3.Connection,
    query: Filter,
    sort: Sort,
    key: RowKey,
    upto: int,
    *,
    few: bool = False,
) -> str | None:
    """Id of the row right before `key` in the order."""
    back = sort.reversed()
    found = []
    if key.value is None:  # those without a value come last, in both directions
        found = _run_unvalued(connection, query, back, key, upto, 1)
        key = RowKey(None, 0)
    if not found:
        found = _run(connection, query, back, None if key.value is None else key, upto, 1, few=few)
    return found[0][1] if found else None


def count_of(connection: sqlite3.Connection, query: Filter, upto: int, above: int = 0) -> int:
    """Number of rows that a filter meets, with `above` < n <= `upto`."""
    sql = f"SELECT count(*) FROM t WHERE n <= ? AND n > ? AND ({query.where})"
    return int(connection.execute(sql, (upto, above, *query.parameters)).fetchone()[0])


def highest(connection: sqlite3.Connection) -> int:
    """The largest `n`; 0 in an empty index."""
    return int(connection.execute("SELECT coalesce(max(n), 0) FROM t").fetchone()[0])


def row_by_id(connection: sqlite3.Connection, name: str) -> Columns | None:
    """The row of a trajectory; None if the index has no such row."""
    found: Columns | None = connection.execute(f"{_SELECT} WHERE id = ?", (name,)).fetchone()
    return found


def rows_of_group(connection: sqlite3.Connection, group: str, most: int) -> list[Columns]:
    """The rows of a group, by sample; extras last."""
    sql = f"{_SELECT} WHERE grp = ? ORDER BY extra, sample, n LIMIT ?"
    return connection.execute(sql, (group, most)).fetchall()


def shown(found: Columns) -> dict[str, Any]:
    """A row as pages show it."""
    row = dict(zip(("n", *COLUMNS), found, strict=True))
    seconds = {s: row[f"s_{s}"] for s in STAGES if row[f"s_{s}"] is not None}
    names = ("n", "id", "run", "env", "instance", "sample", "model", "agent", "score", "status")
    same = ("cause", "stage", "attempts", "turns", "messages", "prompt_tokens", "reason")
    rest = ("completion_tokens", "cost", "policy_oldest", "policy_newest", "tests_failed")
    return {
        **{name: row[name] for name in (*names, *same, *rest)},
        "group": row["grp"],
        "stop_reason": row["stop"],
        "calls": {
            "attempted": row["calls_attempted"],
            "schema_valid": row["calls_valid"],
            "ok": row["calls_ok"],
            "error": row["calls_error"],
        },
        "seconds": seconds,
        "patch_bytes": row["patch_bytes"],
        "flags": split(row["flags"]),
        "tools": split(row["tools"]),
        "extra": bool(row["extra"]),
        "stale": bool(row["stale"]),
        "evaluation": bool(row["evaluation"]),
        "bytes": row["bytes"],
        "problem": row["problem"],
        "created": row["created"],
        "finished": row["finished"],
    }


def _run(
    connection: sqlite3.Connection,
    query: Filter,
    sort: Sort,
    key: RowKey | None,
    upto: int,
    limit: int,
    *,
    few: bool = False,
) -> list[Columns]:
    """Rows with a value in the column of the order."""
    # SQLite uses no index for a term with a plus.
    column, compare = f"{'+' * few}{sort.column}", "<" if sort.descending else ">"
    condition = f"{column} IS NOT NULL"
    values: tuple[Any, ...] = ()
    if key is not None:
        condition = f"({column}, n) {compare} (?, ?)"
        values = (key.value, key.n)
    sql = (
        f"{_SELECT} WHERE n <= ? AND ({query.where}) AND {condition} "
        f"ORDER BY {column} {sort.direction}, n {sort.direction} LIMIT ?"
    )
    return connection.execute(sql, (upto, *query.parameters, *values, limit)).fetchall()


def _run_unvalued(
    connection: sqlite3.Connection,
    query: Filter,
    sort: Sort,
    key: RowKey | None,
    upto: int,
    limit: int,
) -> list[Columns]:
    compare = "<" if sort.descending else ">"
    condition, values = ("1", ()) if key is None else (f"n {compare} ?", (key.n,))
    sql = (
        f"{_SELECT} WHERE n <= ? AND ({query.where}) AND {sort.column} IS NULL AND {condition} "
        f"ORDER BY n {sort.direction} LIMIT ?"
    )
    return connection.execute(sql, (upto, *query.parameters, *values, limit)).fetchall()


SCAN_S = 10.0
"""A page of `grep:` ends after this time, with what it has found and a cursor to go on."""
_AT_ONCE = 64

FetchRows = Callable[[RowKey | None, int], list[Columns]]
"""(key, limit) -> rows behind the key."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What one page of `grep:` found."""

    rows: list[Columns]
    last: RowKey | None
    """Position to go on from; None = all rows were looked into."""
    scanned: int


def scan(
    fetch: FetchRows,
    holds: Callable[[Columns], bool],
    sort: Sort,
    key: RowKey | None,
    limit: int,
    *,
    seconds: float = SCAN_S,
) -> Scan:
    """Rows behind `key` for which `holds` is true: at most `limit`, and what `seconds` allow.

    At least one row is looked into, so that a caller who goes on comes to the end.
    """
    deadline = time.monotonic() + seconds
    found: list[Columns] = []
    scanned = 0
    while rows := fetch(key, _AT_ONCE):
        for row in rows:
            if holds(row):
                found.append(row)
            scanned += 1
            key = key_of(row, sort)
            if len(found) == limit or time.monotonic() > deadline:
                return Scan(found, key, scanned)
        if len(rows) < _AT_ONCE:
            break
    return Scan(found, None, scanned)
