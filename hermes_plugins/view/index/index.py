"""The index: what pages ask of it."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes_plugins.view.index import figures, pages
from hermes_plugins.view.index import groups as grouping
from hermes_plugins.view.index.cursors import decode_cursor
from hermes_plugins.view.index.database import Database, QueryTooSlow
from hermes_plugins.view.index.filters import Filter, compiled
from hermes_plugins.view.index.indexer import Indexer
from hermes_plugins.view.index.pages import RowKey, RowPage, Sort
from hermes_plugins.view.records.containing import holds_all
from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.raw import UnreadableRecord
from hermes_plugins.view.records.rows import damaged_row, id_of
from hermes_plugins.view.sources.base import RecordGone, RecordSource

DEFAULT_SORT = "-created"
LIMIT_MAX = 500
GROUP_ROWS_MAX = 1024
FEW = 5000
"""Rows that are sorted in less time than it takes to find them among many others, one by one."""
_CACHED = 2
_SCANS = 2
"""Requests that look into records at the same time; further ones wait as long as they may scan."""


class Index:
    """All trajectories of some sources, in lists that are filtered, sorted and paged.

    Methods may be called by any thread. Those that take a `query` raise FilterError if it is not
    understood, those that take `sort`, `after` or `of` PageError; QueryTooSlow is raised after ten
    seconds. Rows are dicts as `GET /api/trajectories` returns them.

    Args:
        path: the SQLite file, without its schema version; made if missing, with mode 0600.
        sources: where the records are; closed with the index.
        labels_of: the file that the labels of `set_reviews` come from: processes with other
            files may share the index.

    Raises:
        ConfigurationError: the file cannot be opened.
    """

    def __init__(
        self, path: Path, sources: Sequence[RecordSource], *, labels_of: Path | None = None
    ) -> None:
        self._sources = {source.name: source for source in sources}
        self._database = Database(path, labels_of)
        self._indexer = Indexer(self._database, sources)
        self._recent: OrderedDict[str, tuple[int, Mapping[str, Any]]] = OrderedDict()
        self._recent_lock = threading.Lock()
        self._scanning = threading.BoundedSemaphore(_SCANS)

    # --- reading the sources -----------------------------------------------------------------

    @property
    def sources(self) -> Sequence[RecordSource]:
        """The sources, in the order given."""
        return list(self._sources.values())

    @property
    def indexing(self) -> bool:
        """Whether older records are still being read."""
        return self._indexer.indexing

    @property
    def writes(self) -> bool:
        """Whether this process fills the index; if not, another one has it open and does."""
        return self._database.writes

    @property
    def problems(self) -> list[str]:
        """What is wrong with the sources, a sentence each."""
        return self._indexer.problems

    def start(self) -> None:
        """Read the sources in a thread; before that, the index holds what it held last time."""
        self._indexer.start()

    def refresh(self) -> None:
        """Read what is new, in this thread; for programs that do not `start` one."""
        self._indexer.round()

    def touch(self) -> None:
        """Somebody looks. New records are looked for as long as this is called now and then."""
        self._indexer.touch()

    def close(self) -> None:
        """End the thread; close file and sources. Idempotent."""
        self._indexer.close()
        self._database.close()
        for source in self._sources.values():
            source.close()

    # --- lists -------------------------------------------------------------------------------

    def page(
        self,
        query: str = "",
        *,
        sort: str = DEFAULT_SORT,
        after: str | None = None,
        upto: int | None = None,
        limit: int = 100,
        grep_s: float = pages.SCAN_S,
    ) -> RowPage:
        """A page of the trajectories that `query` meets.

        Args:
            query: the filter language; "" meets all.
            sort: a name of `fields.SORTS`, with - before it to descend. Rows without a value come
                last.
            after: `next` of the page before; None = the first page.
            upto: `upto` of the first page, which keeps rows away that came since; None = take all.
            limit: rows of the page, at most `LIMIT_MAX`.
            grep_s: seconds for looking into records, if the query has `grep:`.
        """
        chosen, order = compiled(query), Sort.of(sort)
        key = None if after is None else RowKey.decode(after, order)
        limit = max(1, min(limit, LIMIT_MAX))
        with self._database.reader() as connection:
            last = _last(connection, upto)
            count = pages.count_of(connection, chosen, last)
            if not chosen.grep:
                few = count < FEW
                rows = pages.rows_after(connection, chosen, order, key, last, limit + 1, few=few)
        if chosen.grep:
            return self._grepped(chosen, order, key, last, limit, count, grep_s)
        more = len(rows) > limit
        rows = rows[:limit]
        cursor = pages.key_of(rows[-1], order).encode(order) if more else None
        return RowPage([pages.shown(row) for row in rows], cursor, count, last)

    def count(self, query: str = "", *, upto: int | None = None, above: int = 0) -> int:
        """Number of rows that `query` meets, `grep:` aside, with `above` < n <= `upto`."""
        chosen = compiled(query)
        with self._database.reader() as connection:
            last = _last(connection, upto)
            return pages.count_of(connection, chosen, last, above)

    def upto(self) -> int:
        """The largest `n` of a row."""
        with self._database.reader() as connection:
            return pages.highest(connection)

    def histogram(self, query: str, of: str, *, upto: int | None = None) -> dict[str, Any]:
        """How many rows of `query`, `grep:` aside, have which value; see `figures.histogram`."""
        chosen = compiled(query)
        with self._database.reader() as connection:
            last = _last(connection, upto)
            return figures.histogram(connection, chosen, of, last)

    def neighbours(
        self, name: str, query: str = "", *, sort: str = DEFAULT_SORT, upto: int | None = None
    ) -> dict[str, Any] | None:
        """The rows before and behind a trajectory in a list, and its place there.

        Returns:
            `before` and `after`: ids or None; `position`: from 1 on, `count`. None if there is no
            such trajectory. With `grep:` the neighbours are those in the list without it.
        """
        chosen, order = compiled(query), Sort.of(sort)
        with self._database.reader() as connection:
            row = pages.row_by_id(connection, name)
            if row is None:
                return None
            last = _last(connection, upto)
            key = pages.key_of(row, order)
            count = pages.count_of(connection, chosen, last)
            near = {"few": count < FEW}
            behind = pages.rows_after(connection, chosen, order, key, last, 1, **near)
            return {
                "before": pages.id_before(connection, chosen, order, key, last, **near),
                "after": behind[0][1] if behind else None,
                "position": pages.rows_before(connection, chosen, order, key, last) + 1,
                "count": count,
            }

    # --- groups and runs ---------------------------------------------------------------------

    def groups(
        self,
        query: str = "",
        *,
        sort: str = DEFAULT_SORT,
        after: str | None = None,
        upto: int | None = None,
        limit: int = 100,
    ) -> grouping.GroupPage:
        """A page of groups; their numbers are those of the rows that `query` meets.

        `sort` is a name of `groups.GROUP_SORTS`; the others are those of `page`.
        """
        chosen, order = compiled(query), grouping.group_sort(sort)
        key = None if after is None else decode_cursor(after, order.text(), str)
        limit = max(1, min(limit, LIMIT_MAX))
        with self._database.reader() as connection:
            last = _last(connection, upto)
            found = grouping.groups(connection, chosen, order, key, last, limit + 1)
            count = grouping.group_count(connection, chosen, last)
        cursor = grouping.group_cursor(found[limit - 1], order) if len(found) > limit else None
        shown = [grouping.shown_group(each) for each in found[:limit]]
        return grouping.GroupPage(shown, cursor, count, last)

    def group(self, name: str) -> dict[str, Any] | None:
        """`group`, and its `rows` by sample, extras last; None if there is no such group."""
        with self._database.reader() as connection:
            rows = pages.rows_of_group(connection, name, GROUP_ROWS_MAX)
        return {"group": name, "rows": [pages.shown(row) for row in rows]} if rows else None

    def runs(self) -> list[dict[str, Any]]:
        """The runs with their numbers, newest first."""
        with self._database.reader() as connection:
            return figures.runs(connection)

    def run(self, name: str) -> dict[str, Any] | None:
        """One run, with envs, models, policies, failures and stages; None if there is none."""
        with self._database.reader() as connection:
            return figures.run(connection, name)

    # --- one trajectory ----------------------------------------------------------------------

    def row(self, name: str) -> dict[str, Any] | None:
        """The row of a trajectory; None if there is none."""
        with self._database.reader() as connection:
            found = pages.row_by_id(connection, name)
        return pages.shown(found) if found else None

    def read(self, name: str) -> Mapping[str, Any] | None:
        """The record of a trajectory from its source; None if the index has no such row.

        The last two are kept. Callers must not change what they get.

        Raises:
            RecordGone: it was deleted since it was indexed.
            UnreadableRecord: it is damaged, too large, or of a newer version.
            HermesQueueError: its source does not answer.
        """
        with self._database.reader() as connection:
            row = pages.row_by_id(connection, name)
            places = _places(connection, row[0]) if row else []
        if row is None:
            return None
        with self._recent_lock:
            kept = self._recent.get(name)
        if kept and kept[0] == row[0]:
            return kept[1]
        raw = self._read(name, places)
        with self._recent_lock:
            self._recent[name] = (row[0], raw)
            self._recent.move_to_end(name)
            while len(self._recent) > _CACHED:
                self._recent.popitem(last=False)
        return raw

    def set_reviews(self, labels: Mapping[str, str]) -> None:
        """All labels that `reviewed:` looks at, by trajectory id; others are forgotten.

        They are a copy: `hermes_queue.bodies.reviews` keeps them.
        """
        self._database.set_reviews(labels)

    # --- parts -------------------------------------------------------------------------------

    def _grepped(
        self,
        chosen: Filter,
        order: Sort,
        key: RowKey | None,
        upto: int,
        limit: int,
        count: int,
        seconds: float,
    ) -> RowPage:
        def fetch(key: RowKey | None, most: int) -> list[pages.Columns]:
            with self._database.reader() as connection:
                return pages.rows_after(connection, chosen, order, key, upto, most)

        def holds(row: pages.Columns) -> bool:
            with self._database.reader() as connection:
                places = _places(connection, row[0])
            with suppress(RecordGone, UnreadableRecord):
                return holds_all(self._read(row[1], places), chosen.grep)
            return False

        if not self._scanning.acquire(timeout=pages.SCAN_S):
            raise QueryTooSlow(f"{_SCANS} other requests look into records: try again")
        try:
            found = pages.scan(fetch, holds, order, key, limit, seconds=seconds)
        finally:
            self._scanning.release()
        cursor = found.last.encode(order) if found.last else None
        return RowPage([pages.shown(row) for row in found.rows], cursor, count, upto, found.scanned)

    def _read(self, name: str, places: Sequence[Location]) -> Mapping[str, Any]:
        problem: RecordGone | None = None
        for place in places:
            source = self._sources.get(place.source)
            if source is None:
                continue
            try:
                raw = source.read(place)
                if (id_of(raw) or damaged_row(place).id) in (name, place.member or name):
                    return raw
                problem = RecordGone(f"{source.title} holds another record at its place")
            except RecordGone as error:
                problem = error
            self._indexer.read_again(place.source, place.file)
        raise problem or RecordGone("its source is not open")


def _last(connection: sqlite3.Connection, upto: int | None) -> int:
    """The largest `n` of rows that are part of a list."""
    return pages.highest(connection) if upto is None else upto


def _places(connection: sqlite3.Connection, n: int) -> list[Location]:
    """Where a row's record is; files before Redis."""
    sql = (
        "SELECT source, name, at, length, member FROM places JOIN files USING (fid) WHERE n = ? "
        "ORDER BY source LIKE 'redis-%'"
    )
    return [Location(*found) for found in connection.execute(sql, (n,))]
