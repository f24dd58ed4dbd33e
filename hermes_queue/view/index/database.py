"""The SQLite file of the index: its schema, its rights, and the connections of readers."""

from __future__ import annotations

import hashlib
import os
import queue
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hermes_queue.disk.locks import try_hold
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.view.records.rows import COLUMNS

SCHEMA = 2
"""Part of the file's name. It rises with every change of the tables or of what is in them: an
older file is deleted and read anew."""
READERS = 4
"""Connections of readers; more requests wait for one."""
QUERY_S = 10.0
"""A query that takes longer is ended."""
_CHECK_OPERATIONS = 200_000
_BUSY_MS = 5000

_REAL = {"score", "cost", "seconds", "created", "finished"}
_WHOLE = {
    *("sample", "size", "attempts", "turns", "messages", "prompt_tokens", "completion_tokens"),
    *("calls_attempted", "calls_valid", "calls_ok", "calls_error", "tests_failed", "patch_bytes"),
    *("evaluation", "extra", "stale", "bytes", "partial"),
}


def _type(column: str) -> str:
    if column in _REAL or column.startswith("s_"):
        return "REAL"
    return "INTEGER" if column in _WHOLE else "TEXT"


_DEFINED = ", ".join(f"{column} {_type(column)}" for column in COLUMNS)
_TABLES = f"""
CREATE TABLE t (n INTEGER PRIMARY KEY AUTOINCREMENT, {_DEFINED});
CREATE UNIQUE INDEX t_id ON t (id);
CREATE INDEX t_created ON t (created, n);
CREATE INDEX t_run ON t (run, created, n);
CREATE INDEX t_grp ON t (grp, extra, score, created, n);
CREATE INDEX t_score ON t (score, n);
CREATE INDEX t_turns ON t (turns, n);
CREATE INDEX t_cost ON t (cost, n);
CREATE INDEX t_seconds ON t (seconds, n);
CREATE INDEX t_completion ON t (completion_tokens, n);
CREATE INDEX t_instance ON t (instance, n);
CREATE INDEX t_env ON t (env, n);
CREATE INDEX t_flags ON t (n) WHERE flags != '';
CREATE INDEX t_damaged ON t (n) WHERE problem IS NOT NULL;
CREATE TABLE files (fid INTEGER PRIMARY KEY, source TEXT NOT NULL, name TEXT NOT NULL, mark TEXT,
  renewed INTEGER NOT NULL DEFAULT 0,
  UNIQUE (source, name));
CREATE TABLE places (n INTEGER NOT NULL, fid INTEGER NOT NULL, at INTEGER NOT NULL,
  length INTEGER NOT NULL, member TEXT NOT NULL, unseen INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (n, fid)) WITHOUT ROWID;
CREATE INDEX places_fid ON places (fid);
CREATE TABLE labels (kept_in TEXT NOT NULL, id TEXT NOT NULL, label TEXT NOT NULL,
  PRIMARY KEY (kept_in, id)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (
  text, content='', detail=none, tokenize="ascii tokenchars '_'");
PRAGMA user_version = {SCHEMA};
"""


REVIEWS = "CREATE TEMP VIEW reviews AS SELECT id, label FROM labels WHERE kept_in = '{}'"
"""What `reviewed:` looks at, of a reader: labels that are kept in one file."""


class QueryTooSlow(HermesQueueError):
    """A query was ended because it took longer than `QUERY_S`."""


class Database:
    """The file of one index. One process writes it, of which one thread; any may read.

    Args:
        path: without the schema version, which is put before the suffix. Files of other versions
            beside it are deleted.
        labels_of: the file of the labels that this process shows. Another one may show those of
            another file.

    Raises:
        ConfigurationError: the directory cannot be written.
    """

    def __init__(self, path: Path, labels_of: Path | None = None) -> None:
        named = os.fsencode(labels_of.resolve()) if labels_of else b""
        self._kept_in = hashlib.sha256(named).hexdigest()[:16] if named else ""
        self.path = path.with_name(f"{path.stem}.v{SCHEMA}{path.suffix}")
        self._lock: int | None = None
        self._lock_path = path.with_suffix(".lock")
        self._idle: queue.SimpleQueue[sqlite3.Connection | None] = queue.SimpleQueue()
        self._closed = False
        self._life = 0
        """Number of files that this one has replaced; connections to them are closed."""
        self._damaged = False
        self._labels: Mapping[str, str] = {}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = try_hold(self._lock_path)
            if self.writes:
                self._forget_other_versions(path)
            self._open()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise ConfigurationError(f"{self.path}: cannot be opened: {error}") from error
        for _ in range(READERS):
            self._idle.put(None)

    @property
    def writes(self) -> bool:
        """Whether this process fills the index; another one that has it open does otherwise."""
        return self._lock is not None

    def writable(self) -> bool:
        """Whether this process may write, by now: the one that did may have ended.

        A file that readers found damaged is made again.

        Raises:
            sqlite3.Error: it cannot be opened.
        """
        if self._lock is None and not self._closed:
            with suppress(OSError):
                self._lock = try_hold(self._lock_path)
            if self.writes:
                self._open()
        if self.writes and self._damaged:
            self.rebuild()
        return self.writes

    def writer(self) -> sqlite3.Connection:
        """A connection for the one thread that writes."""
        return self._connect("PRAGMA synchronous = NORMAL", "PRAGMA cache_size = -8000")

    @contextmanager
    def reader(self, *, seconds: float = QUERY_S) -> Iterator[sqlite3.Connection]:
        """A connection that reads, of a fixed number.

        Raises:
            QueryTooSlow: the block's queries took longer than `seconds`, or those of others did.
            HermesQueueError: the file cannot be read, or is closed.
        """
        if self._closed:
            raise HermesQueueError("the index is closed")
        try:
            connection, life = self._idle.get(timeout=seconds + QUERY_S), self._life
        except queue.Empty:
            raise QueryTooSlow("too many other queries take long: try again") from None
        deadline = time.monotonic() + seconds
        late = False

        def check() -> bool:
            nonlocal late
            late = time.monotonic() > deadline
            return late

        try:
            if connection is None:
                reviews = REVIEWS.format(self._kept_in)
                settings = ("PRAGMA query_only = 1", "PRAGMA cache_size = -2000")
                connection = self._connect(reviews, *settings)
            connection.set_progress_handler(check, _CHECK_OPERATIONS)
            yield connection
        except sqlite3.Error as error:
            if late:
                raise QueryTooSlow(
                    f"the query took longer than {seconds:g} s: narrow it, for example by run:"
                ) from error
            self._damaged |= is_damage(error)
            life = -1
            raise HermesQueueError(f"{self.path}: cannot be read: {error}") from error
        finally:
            if connection is not None:
                connection.set_progress_handler(None, 0)
            if connection is not None and (life != self._life or self._closed):
                connection.close()
                connection = None
            self._idle.put(connection)

    def set_reviews(self, labels: Mapping[str, str]) -> None:
        """Replace all labels of `reviews`, by trajectory id; those of other files stay.

        Raises:
            HermesQueueError: the file cannot be written.
        """
        self._labels = labels
        try:
            with closing(self.writer()) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("DELETE FROM labels WHERE kept_in = ?", (self._kept_in,))
                rows = ((self._kept_in, name, label) for name, label in labels.items())
                connection.executemany("INSERT INTO labels VALUES (?, ?, ?)", rows)
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise HermesQueueError(f"{self.path}: cannot be written: {error}") from error

    def rebuild(self) -> None:
        """Begin with an empty file, after the present one turned out to be damaged."""
        _unlink(self.path)
        self._open()
        if self._labels:
            self.set_reviews(self._labels)
        self._life += 1
        self._damaged = False
        for _ in range(self._idle.qsize()):
            connection = self._idle.get()
            if connection is not None:
                connection.close()
            self._idle.put(None)

    def close(self) -> None:
        """Close the connections of readers, and let another process write. Idempotent."""
        if not self._closed:
            self._closed = True
            while not self._idle.empty():
                connection = self._idle.get()
                if connection is not None:
                    connection.close()
            if self._lock is not None:
                os.close(self._lock)

    def _open(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.close(fd)
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            if not is_damage(error) or not self.writes:
                raise
            _unlink(self.path)  # it is no database any more
            self._prepare()

    def _prepare(self) -> None:
        with closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA and self.writes:
                connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
        self.path.chmod(0o600)

    def _connect(self, *settings: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            for setting in settings:
                connection.execute(setting)
        except BaseException:
            connection.close()
            raise
        return connection

    def _forget_other_versions(self, path: Path) -> None:
        for other in path.parent.glob(f"{path.stem}.v*{path.suffix}"):
            if other != self.path:
                _unlink(other)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database any more; other errors pass, or are mistakes of ours."""
    return type(error) is sqlite3.DatabaseError


def _unlink(path: Path) -> None:
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        with suppress(FileNotFoundError):
            name.unlink()
