"""The SQLite file of the index: its schema, its rights, and the connections of readers."""

from __future__ import annotations

import hashlib
import os
import queue
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_plugins.view.records.rows import COLUMNS
from hermes_queue.disk.locks import try_hold
from hermes_queue.errors import ConfigurationError, HermesQueueError

READERS = 4
"""Connections of readers; more requests wait for one."""
QUERY_S = 10.0
"""A query that takes longer is ended."""
_CHECK_OPERATIONS = 200_000
_BUSY_MS = 5000
_DAMAGES = ("no such table: ", "no such column: ", "vtable constructor failed: ")
"""What SQLite says, as of a mistake in a query, of a file that lost some of its tables."""

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
PRAGMA user_version = 1;
"""


REVIEWS = "CREATE TEMP VIEW reviews AS SELECT id, label FROM labels WHERE kept_in = '{}'"
"""What `reviewed:` looks at, of a reader: labels that are kept in one file."""


def schema_of(tables: str, filling: Iterable[Path]) -> str:
    """A digest of the tables, and of the modules `filling`, which decide what is in them.

    It is part of the file's name: a file that other code has filled is deleted and read anew.
    """
    made = hashlib.sha256(tables.encode())
    for module in sorted(filling):
        made.update(b"\0" + module.read_bytes())
    return made.hexdigest()[:12]


_HERE = Path(__file__).parent
FILLING = (
    *(_HERE.parent / "records").glob("*.py"),
    *(_HERE.parent / "sources").glob("*.py"),
    _HERE / "writing.py",
)
SCHEMA = schema_of(_TABLES, FILLING)
FileIdentity = tuple[int, int]
"""Device and inode of a file: which file it is, whatever has its name by now."""


class QueryTooSlow(HermesQueueError):
    """A query was ended because it took longer than `QUERY_S`."""


class Database:
    """The file of one index. One process writes it, of which one thread; any may read.

    It may be deleted or replaced at any time: then it is made again.

    Args:
        path: without the digest of the schema, which is put before the suffix. Files of other
            schemas beside it are deleted, unless a process has them open.
        labels_of: the file of the labels that this process shows. Another one may show those of
            another file.

    Raises:
        ConfigurationError: the directory cannot be written.
    """

    def __init__(self, path: Path, labels_of: Path | None = None) -> None:
        named = os.fsencode(labels_of.resolve()) if labels_of else b""
        self._kept_in = hashlib.sha256(named).hexdigest()[:16] if named else ""
        self.path = path.absolute().with_name(f"{path.stem}.{SCHEMA}{path.suffix}")
        self._lock: int | None = None
        self._idle: queue.SimpleQueue[_Opened | None] = queue.SimpleQueue()
        self._closed = False
        self._damaged = False
        self._labels: Mapping[str, str] = {}
        self._labels_in: FileIdentity | None = None
        try:
            self._hold()
            if self.writes:
                self._forget_other_schemas(path)
            self._open()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise ConfigurationError(
                f"{self.path}: cannot be opened: {error}; delete it, or set "
                "HERMES_QUEUE_PATHS_CACHE to a directory of yours with room"
            ) from error
        for _ in range(READERS):
            self._idle.put(None)

    @property
    def writes(self) -> bool:
        """Whether this process fills the index; another one that has it open does otherwise."""
        return self._lock is not None

    def writable(self) -> bool:
        """Whether this process may write, by now: the one that did may have ended.

        A file that is gone, or that readers found damaged, is made again.

        Raises:
            OSError, sqlite3.Error: it cannot be opened.
        """
        if self._lock is None and not self._closed:
            with suppress(OSError):
                self._hold()
            if self.writes:
                self._open()
        if self.writes and (self._damaged or not self._is_made()):
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
            opened = self._idle.get(timeout=seconds + QUERY_S)
        except queue.Empty:
            raise QueryTooSlow("too many other queries take long: try again") from None
        deadline = time.monotonic() + seconds
        late = False

        def check() -> bool:
            nonlocal late
            late = time.monotonic() > deadline
            return late

        try:
            opened = self._reopened(opened)
            opened.connection.set_progress_handler(check, _CHECK_OPERATIONS)
            yield opened.connection
            opened.connection.set_progress_handler(None, 0)
        except sqlite3.Error as error:
            _close(opened)
            opened = None
            if late:
                raise QueryTooSlow(
                    f"the query took longer than {seconds:g} s: narrow it, for example by run:"
                ) from error
            self._damaged |= is_damage(error)
            raise HermesQueueError(f"{self.path}: cannot be read: {error}") from error
        finally:
            if self._closed:
                _close(opened)
                opened = None
            self._idle.put(opened)

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
            self._labels_in = _identity(self.path)
        except sqlite3.Error as error:
            self._damaged |= is_damage(error)
            raise HermesQueueError(f"{self.path}: cannot be written: {error}") from error

    def rebuild(self) -> None:
        """Begin with an empty file, after the present one turned out to be damaged or gone.

        Raises:
            OSError, sqlite3.Error: it cannot be made.
        """
        if not self._lock_path.exists():  # its directory was deleted, so others may hold another
            self._unlock()
            self._hold()
        if self.writes:
            _unlink(self.path)
        self._open()
        self._damaged = False
        if self._labels:
            self.set_reviews(self._labels)

    def close(self) -> None:
        """Close the connections of readers, and let another process write. Idempotent."""
        if not self._closed:
            self._closed = True
            while not self._idle.empty():
                _close(self._idle.get())
            self._unlock()

    @property
    def _lock_path(self) -> Path:
        return self.path.with_suffix(".lock")

    def _hold(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = try_hold(self._lock_path)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.close(fd)
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            if not is_damage(error) or not self.writes:
                raise
            _unlink(self.path)  # it is no database any more
            self._open()

    def _prepare(self) -> None:
        with closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            if self.writes and not _has_tables(connection):
                connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
        self.path.chmod(0o600)

    def _is_made(self) -> bool:
        """Whether the file is there, with its tables."""
        if _identity(self.path) is None:
            return False
        with closing(self._connect()) as connection:
            return _has_tables(connection)

    def _connect(self, *settings: str) -> sqlite3.Connection:
        """A connection to the file, which is never made by it, with the rights of any file."""
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            timeout=_BUSY_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            for setting in settings:
                connection.execute(setting)
        except BaseException:
            connection.close()
            raise
        return connection

    def _reopened(self, opened: _Opened | None) -> _Opened:
        """The connection of a reader, or a new one if another file has the name by now."""
        identity = _identity(self.path)
        if opened is not None and opened.identity == identity:
            return opened
        _close(opened)
        if self._labels and self._labels_in != identity:  # who made it anew knows only its own
            self.set_reviews(self._labels)
        reviews = REVIEWS.format(self._kept_in)
        settings = ("PRAGMA query_only = 1", "PRAGMA cache_size = -2000")
        return _Opened(self._connect(reviews, *settings), identity)

    def _forget_other_schemas(self, path: Path) -> None:
        for other in path.parent.glob(f"{path.stem}.*{path.suffix}"):
            if other != self.path and (lock := try_hold(other.with_suffix(".lock"))) is not None:
                _unlink(other)
                other.with_suffix(".lock").unlink(missing_ok=True)
                os.close(lock)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A connection of a reader, and to which file."""

    connection: sqlite3.Connection
    identity: FileIdentity | None


def _close(opened: _Opened | None) -> None:
    if opened is not None:
        opened.connection.close()


def _identity(path: Path) -> FileIdentity | None:
    """Which file has a name; None if there is none."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _has_tables(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA user_version").fetchone()[0])


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is not ours any more; other errors pass, or are mistakes of ours."""
    said = str(error)
    return type(error) is sqlite3.DatabaseError or said.startswith(_DAMAGES)


def _unlink(path: Path) -> None:
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        with suppress(FileNotFoundError):
            name.unlink()
