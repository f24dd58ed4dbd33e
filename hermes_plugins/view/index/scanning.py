"""`grep:`: looks into the records of a filtered list, for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hermes_plugins.view.index.pages import Columns, RowKey, Sort, key_of

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
