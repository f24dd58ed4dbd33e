"""What a batch changes in the index: rows, places and marks, in one transaction."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from statistics import median
from typing import Any

from hermes_plugins.view.records.rows import (
    COLUMNS,
    DAMAGED,
    IndexRow,
    damaged_row,
    joined,
    row_of,
    split,
)
from hermes_plugins.view.records.texts import searchable_text
from hermes_plugins.view.records.values import text
from hermes_plugins.view.sources.base import Batch, FoundRecord, Mark

logger = logging.getLogger(__name__)

LONE_SCORE, FEW_TURNS = "lone_score", "few_turns"
"""Flags that come of the group: the only sample with a score above 0, and one that got there in a
third of the others' turns."""
OF_GROUPS = (LONE_SCORE, FEW_TURNS)
_OF_ENTRIES = {"extra", "stale", "finished"}
"""What the entry of a group says of its members."""
_OF_A_RECORD = (
    *(ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    *(sqlite3.InterfaceError, sqlite3.ProgrammingError),
)
"""What a record can cause, whatever the state of the file."""
_SAME_S = 0.002
"""Records of one id that were made at the same time, to the digits of a summary, are one."""
_LONE_OTHERS = 3
_FEW_OF = 3
_TURNS_MIN = 6

_INSERT = f"INSERT INTO t ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_UPDATE = f"UPDATE t SET {', '.join(f'{column} = ?' for column in COLUMNS)} WHERE n = ?"
_SPOILT = "UPDATE t SET status = ?, problem = ?, bytes = ?, partial = 0 WHERE n = ?"
_PLACE = """INSERT INTO places (n, fid, at, length, member) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (n, fid) DO UPDATE SET
  at = excluded.at, length = excluded.length, member = excluded.member, unseen = 0"""


class IndexWriter:
    """Writes batches through one connection, in one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def marks(self, source: str) -> dict[str, Mark | None]:
        """The files of a source that are known, with their marks."""
        query = "SELECT name, mark FROM files WHERE source = ?"
        found = self._connection.execute(query, (source,)).fetchall()
        return {name: _parsed(mark) for name, mark in found}

    def forget_sources(self, kept: list[str]) -> None:
        """Drop what only other sources than `kept` hold."""
        known = [name for (name,) in self._connection.execute("SELECT DISTINCT source FROM files")]
        with self._transaction():
            for source in set(known) - set(kept):
                query = "SELECT fid FROM files WHERE source = ?"
                for (fid,) in self._connection.execute(query, (source,)).fetchall():
                    self._remove(fid)

    def apply(self, source: str, batch: Batch) -> int:
        """Index a batch; returns the number of rows that are new or changed."""
        with self._transaction():
            fid = self._file(source, batch.file)
            if batch.removed:
                self._remove(fid)
                return 0
            if batch.begins:
                self._run("UPDATE places SET unseen = 1 WHERE fid = ?", fid)
                self._run("UPDATE files SET renewed = 1 WHERE fid = ?", fid)
            groups: set[str] = set()
            changed = sum(self._add(fid, found, groups) for found in batch.found)
            for group in groups:
                self._flag(group)
            if batch.mark is not None:
                mark = json.dumps(batch.mark)
                self._run("UPDATE files SET mark = ? WHERE fid = ?", mark, fid)
            if batch.ends:
                self._finish(fid)
        return changed

    def _file(self, source: str, name: str) -> int:
        query = "SELECT fid FROM files WHERE source = ? AND name = ?"
        found = self._run(query, source, name).fetchone()
        if found:
            return int(found[0])
        made = self._run("INSERT INTO files (source, name) VALUES (?, ?)", source, name)
        return int(made.lastrowid or 0)

    def _add(self, fid: int, found: FoundRecord, groups: set[str]) -> bool:
        try:
            return self._put(fid, found, _row(found), groups)
        except _OF_A_RECORD as error:  # all others would wait for this one forever
            logger.exception("a record cannot be listed", extra={"action": "index_row_failed"})
            problem = f"cannot be listed: {type(error).__name__}: {error}"
            row = damaged_row(found.location, problem)
            return self._put(fid, replace(found, raw=None), row, groups)

    def _put(self, fid: int, found: FoundRecord, row: IndexRow, groups: set[str]) -> bool:
        query = "SELECT n, created, problem, partial, extra, stale FROM t WHERE id = ?"
        known = self._run(query, row.id).fetchone()
        n, changed = self._merged(known, row, found, fid) if known else (None, True)
        if n is None and changed:
            n = self._insert(row, found)
        if changed and row.grp:
            groups.add(row.grp)
        if n is not None:
            place = found.location
            self._run(_PLACE, n, fid, place.offset, place.length, place.member)
        return changed

    def _merged(
        self, known: tuple[Any, ...], row: IndexRow, found: FoundRecord, fid: int
    ) -> tuple[int | None, bool]:
        """(number of the row that holds this record, whether something changed).

        The number is None if the record takes the row's place, or is an older one that lost it: a
        purged run begins another life with the same ids. Of several records with an id that were
        made at the same time, the last one in a file counts.
        """
        n, created, problem, partial, extra, stale = known
        if row.problem is not None and partial:
            self._run(_SPOILT, DAMAGED, row.problem, row.bytes, n)
            return n, True
        if row.problem is not None:
            return (n if problem is not None else None), False
        unknown = partial and created is None  # a summary leaves out what has no room
        later_s = 0.0 if unknown else (row.created or 0.0) - (created or 0.0)
        if problem is not None or later_s > _SAME_S:
            self._delete(n)
            return None, True
        query = "SELECT at, unseen FROM places WHERE n = ? AND fid = ?"
        at, unseen = self._run(query, n, fid).fetchone() or (found.location.offset, 0)
        if not unseen and found.location.offset < at:
            return None, False
        if later_s < -_SAME_S and not (unseen and self._is_unseen(n)):
            return None, False
        if partial and not row.partial:
            self._complete(n, row, found)
            return n, True
        written_anew = unseen or found.location.offset > at
        if written_anew and not row.partial and self._differs(n, row):
            return self._replace(n, row, found), True
        if row.extra > extra or row.stale > stale:
            marks = (max(row.extra, extra), max(row.stale, stale), n)
            self._run("UPDATE t SET extra = ?, stale = ? WHERE n = ?", *marks)
        return n, False

    def _complete(self, n: int, row: IndexRow, found: FoundRecord) -> None:
        """Make a row of a summary one of the record; it keeps its number."""
        query = "SELECT flags FROM t WHERE n = ?"
        had = split(self._run(query, n).fetchone()[0])
        row.flags = joined([*split(row.flags), *(f for f in had if f in OF_GROUPS)])
        self._run(_UPDATE, *astuple(row), n)
        self._add_words(n, found)

    def _is_unseen(self, n: int) -> bool:
        """Whether all places of a row are in files that are read from their beginning again."""
        return not self._run("SELECT 1 FROM places WHERE n = ? AND unseen = 0", n).fetchone()

    def _differs(self, n: int, row: IndexRow) -> bool:
        """Whether a record is another one than that of its row, apart from what its group says."""
        (known,) = self._run(f"SELECT {', '.join(COLUMNS)} FROM t WHERE n = ?", n).fetchall()
        had = dict(zip(COLUMNS, known, strict=True))
        had["flags"] = joined(flag for flag in split(had["flags"]) if flag not in OF_GROUPS)
        return any(had[name] != getattr(row, name) for name in COLUMNS if name not in _OF_ENTRIES)

    def _replace(self, n: int, row: IndexRow, found: FoundRecord) -> int:
        """Put a record into the place of another one with its id; returns its number, a new one."""
        self._run("DELETE FROM t WHERE n = ?", n)
        made = self._insert(row, found)
        self._run("UPDATE places SET n = ? WHERE n = ?", made, n)
        return made

    def _insert(self, row: IndexRow, found: FoundRecord) -> int:
        n = int(self._run(_INSERT, *astuple(row)).lastrowid or 0)
        self._add_words(n, found)
        return n

    def _add_words(self, n: int, found: FoundRecord) -> None:
        words = searchable_text(found.raw or {})
        if words:
            self._run("INSERT INTO words (rowid, text) VALUES (?, ?)", n, words)

    def _flag(self, group: str) -> None:
        query = "SELECT n, score, turns, flags FROM t WHERE grp = ? AND extra = 0"
        members = self._run(query, group).fetchall()
        if len(members) <= _LONE_OTHERS:
            return
        for n, score, turns, flags in members:
            had = split(flags)
            own = [flag for flag in had if flag not in OF_GROUPS]
            now = [*own, *_flags_of(n, score, turns, members)]
            if now != had:
                self._run("UPDATE t SET flags = ? WHERE n = ?", joined(now), n)

    def _finish(self, fid: int) -> None:
        (renewed,) = self._run("SELECT renewed FROM files WHERE fid = ?", fid).fetchone()
        if renewed:
            query = "SELECT n FROM places WHERE fid = ? AND unseen = 1"
            gone = self._run(query, fid).fetchall()
            self._run("DELETE FROM places WHERE fid = ? AND unseen = 1", fid)
            self._drop_placeless(gone)
            self._run("UPDATE files SET renewed = 0 WHERE fid = ?", fid)

    def _remove(self, fid: int) -> None:
        gone = self._run("SELECT n FROM places WHERE fid = ?", fid).fetchall()
        self._run("DELETE FROM places WHERE fid = ?", fid)
        self._run("DELETE FROM files WHERE fid = ?", fid)
        self._drop_placeless(gone)

    def _drop_placeless(self, rows: list[tuple[int]]) -> None:
        for (n,) in rows:
            if not self._run("SELECT 1 FROM places WHERE n = ?", n).fetchone():
                self._delete(n)

    def _delete(self, n: int) -> None:
        # Its words stay in the full-text index, where no row has this number any more.
        self._run("DELETE FROM places WHERE n = ?", n)
        self._run("DELETE FROM t WHERE n = ?", n)

    def _run(self, query: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(query, values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._run("ROLLBACK")
            raise
        self._run("COMMIT")


def _row(found: FoundRecord) -> IndexRow:
    if found.raw is not None:
        row = row_of(found.raw, found.location)
    elif found.known is not None:
        row = row_of(found.known, found.location)
    else:
        row = damaged_row(found.location, found.problem)
    if found.partial:
        row.partial = 1
    elif found.raw is None:
        row.status, row.problem = DAMAGED, text(found.problem) or "unreadable"
    row.bytes = found.bytes
    row.extra, row.stale = int(found.extra), int(found.stale)
    if found.finished is not None:
        row.finished = found.finished
        if row.status == DAMAGED and row.created is None:
            row.created = found.finished
    return row


def _flags_of(n: int, score: float | None, turns: int | None, members: list[Any]) -> Iterator[str]:
    if score is None or score <= 0:
        return
    others = [(s, t) for number, s, t, _ in members if number != n and s is not None]
    if len(others) >= _LONE_OTHERS and all(s <= 0 for s, _ in others):
        yield LONE_SCORE
    usual = median([t or 0 for _, t in others]) if len(others) >= _LONE_OTHERS else 0
    if usual >= _TURNS_MIN and turns and turns * _FEW_OF <= usual:
        yield FEW_TURNS


def _parsed(mark: str | None) -> Mark | None:
    try:
        found = json.loads(mark) if mark else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
