"""The thread that reads the sources into the index."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress

from hermes_plugins.view.index.database import Database, is_damage
from hermes_plugins.view.index.writing import IndexWriter
from hermes_plugins.view.sources.base import Batch, RecordSource
from hermes_queue.errors import HermesQueueError

EVERY_S = 2.0
"""While somebody looks, sources are asked this often."""
LOOKED_AT_S = 10.0
"""How long somebody is believed to look after a request."""
SLICE_S = 2.0
"""A source that has more to read than this takes lets the others come in between."""
_RETRY_S = 10.0
CLOSE_S = 5.0
"""At the end, a batch that is being read is waited for as long."""

logger = logging.getLogger(__name__)


class Indexer:
    """Reads what is new, newest first, while somebody looks; otherwise it asks for nothing.

    Nothing that a record or a source does ends it: what cannot be read is a row that says why, and
    a source that does not answer is asked again.
    """

    def __init__(self, database: Database, sources: Sequence[RecordSource]) -> None:
        self._database = database
        self._sources = sorted(sources, key=lambda source: source.kind != "redis")
        """Redis first: what was deleted there is in the archive by then."""
        self._removed: dict[tuple[str, str], Batch] = {}
        self._looked_at = time.monotonic()
        self._again: set[tuple[str, str]] = set()
        self._wake = threading.Event()
        self._stopped = False
        self._behind = True
        self._thread: threading.Thread | None = None
        self._problems: dict[str, str] = {}

    @property
    def indexing(self) -> bool:
        """Whether older records are still being read."""
        return self._behind

    @property
    def problems(self) -> list[str]:
        """What was wrong in the last round, for people."""
        said = [problem for source in self._sources for problem in source.problems]
        return [*self._problems.values(), *said]

    def start(self) -> None:
        """Begin to read, in a thread of its own."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="index", daemon=True)
            self._thread.start()

    def touch(self) -> None:
        """Somebody looks: go on for `LOOKED_AT_S`."""
        self._looked_at = time.monotonic()
        if not self._wake.is_set():
            self._wake.set()

    def read_again(self, source: str, file: str) -> None:
        """Read a file from its beginning: a record was not at its place."""
        self._again.add((source, file))
        self.touch()

    def close(self) -> None:
        """End the thread after its present batch. Idempotent.

        A batch that takes longer than `CLOSE_S` to read is left to itself, and not written.
        """
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            self._thread = None

    def round(self) -> None:
        """Read all that is new in all sources, in this thread."""
        try:
            if self._database.writable():
                with closing(self._database.writer()) as connection:
                    self._round(IndexWriter(connection))
                    connection.execute("PRAGMA optimize")
            self._problems.pop("", None)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        self._behind = False

    def _work(self) -> None:
        while not self._stopped:
            begun = time.monotonic()
            self.round()
            rest = _RETRY_S if self._problems else EVERY_S
            self._wake.clear()
            if time.monotonic() - self._looked_at > LOOKED_AT_S and not self._stopped:
                self._wake.wait()
            while not self._stopped and time.monotonic() < begun + rest:
                time.sleep(0.1)

    def _round(self, writer: IndexWriter) -> None:
        """Give each source a slice of time in turns, so that an old archive delays no new group."""
        writer.forget_sources([source.name for source in self._sources])
        waiting = list(self._sources)
        while waiting and not self._stopped:
            waiting = [source for source in waiting if not self._read(source, writer)]
            self._behind = bool(waiting)
            if waiting and self._sources[0] not in waiting:
                waiting.insert(0, self._sources[0])
        # Only now: a group that moves to the archive has its place there first.
        while self._removed and not self._stopped:
            (source, _), batch = self._removed.popitem()
            writer.apply(source, batch)

    def _read(self, source: RecordSource, writer: IndexWriter) -> bool:
        """Read what is new in a source for a while; returns whether that was all."""
        marks = writer.marks(source.name)
        for name, file in [*self._again]:
            if name == source.name:
                marks[file] = None
                self._again.discard((name, file))
        until = time.monotonic() + SLICE_S
        try:
            for batch in source.scan(marks):
                if self._stopped:
                    return False
                if batch.removed:
                    self._removed[source.name, batch.file] = batch
                    continue
                writer.apply(source.name, batch)
                if time.monotonic() > until:
                    return False
            self._problems.pop(source.name, None)
        except sqlite3.Error:
            raise
        except HermesQueueError as error:
            self._note(source.name, str(error))
        except Exception as error:
            logger.exception("the source %s failed", source.title, extra={"action": "index_failed"})
            self._note(source.name, f"{source.title}: {type(error).__name__}: {error}")
        return True

    def _note(self, name: str, problem: str) -> None:
        if self._problems.get(name) != problem:
            logger.warning("%s", problem, extra={"action": "index_source_failed"})
        self._problems[name] = problem

    def _failed(self, error: sqlite3.Error | OSError) -> None:
        """Begin anew with a file that is damaged; leave one that cannot be written for later."""
        self._note("", f"the index cannot be written: {error}")
        if isinstance(error, sqlite3.Error) and is_damage(error):
            with suppress(sqlite3.Error, OSError, HermesQueueError):
                self._database.rebuild()
