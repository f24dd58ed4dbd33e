"""One thread that looks at the deployment while somebody follows it, and tells what has changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hermes_plugins.view.answers import to_json
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.site import Tell
from hermes_queue.errors import HermesQueueError

EVERY_S = 2.0

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Reader:
    """Somebody who looks."""

    tell: Tell
    has_whole: bool = False
    """Whether changes mean something to him."""


class LivePoller:
    """Reads the overview every two seconds, as long as anybody looks, and tells all who do.

    What it asks of Redis does not depend on how many look, nor on how often they come and go.
    Every event is encoded once. All methods may be called by any thread and return at once.

    Args:
        overview: reads the deployment; it may raise HermesQueueError.
        index: kept up to date while somebody looks; its size is an event, too.
        every_s: seconds between two readings.
    """

    def __init__(
        self,
        overview: Callable[[], Mapping[str, Any]],
        index: Index | None = None,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._overview = overview
        self._index = index
        self._every_s = every_s
        self._lock = threading.Lock()
        """Held while events are passed on, never while something is read."""
        self._readers: list[_Reader] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._next = 0.0
        """When the deployment may be read again, on the monotonic clock."""
        self._seen: dict[str, Any] = {}
        """The overview that those who look have; {} = none that is fresh."""
        self._whole: bytes | None = None
        """The same, encoded when somebody needs it."""
        self._gone: bytes | None = None
        self._size: dict[str, Any] = {}
        self._closed = False

    @contextmanager
    def subscribe(self, tell: Tell) -> Iterator[None]:
        """Tell of changes until the block ends: first of the whole overview, then what changes.

        While Redis does not answer, `gone` comes once, and the whole overview afterwards.
        """
        reader = _Reader(tell)
        with self._lock:
            if self._thread is None and time.monotonic() >= self._next:
                self._forget()  # nobody has looked since: it may be hours old
            self._greet(reader)
            self._readers.append(reader)
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(target=self._work, name="live", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._readers.remove(reader)
                if not self._readers:
                    self._wake.set()

    @property
    def watched(self) -> int:
        """How many look."""
        return len(self._readers)

    def close(self) -> None:
        """End: nothing is read any more. Idempotent."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._wake.set()
        if thread is not None:
            thread.join(timeout=self._every_s)

    def _forget(self) -> None:
        self._seen, self._whole, self._gone, self._size = {}, None, None, {}

    def _greet(self, reader: _Reader) -> None:
        """Tell somebody who has just come what is known already."""
        if self._gone:
            reader.tell("gone", self._gone)
        elif self._seen:
            self._tell_whole(reader)
        if self._size:
            reader.tell("index", to_json(self._size))

    def _tell_whole(self, reader: _Reader) -> None:
        if self._whole is None:
            self._whole = to_json(self._seen)
        reader.has_whole = True
        reader.tell("overview", self._whole)

    def _work(self) -> None:
        while True:
            if (rest_s := self._next - time.monotonic()) > 0:
                self._wake.wait(rest_s)
            with self._lock:
                if not self._readers or self._closed:
                    self._thread = None
                    return
                self._wake.clear()
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + self._every_s
                self._look()

    def _look(self) -> None:
        """Read everything once, and tell it."""
        try:
            found = dict(self._overview())
        except HermesQueueError as error:
            self._tell_gone(str(error))
        except Exception:
            if self._gone is None:  # once, and not every two seconds
                logger.exception("the overview failed", extra={"action": "view_live_failed"})
            self._tell_gone("the overview cannot be read, because of a fault of ours")
        else:
            self._tell_changes(found)
        if self._index is not None and not self._closed:
            self._tell_size(self._index)

    def _tell_gone(self, error: str) -> None:
        hint = "the page goes on when Redis answers"
        with self._lock:
            known = self._gone is not None
            self._seen, self._whole = {}, None
            self._gone = to_json({"error": error, "hint": hint})
            for reader in self._readers:
                reader.has_whole = False
                if not known:
                    reader.tell("gone", self._gone)

    def _tell_changes(self, found: dict[str, Any]) -> None:
        with self._lock:
            before, self._seen, self._whole, self._gone = self._seen, found, None, None
            if before.keys() != found.keys():
                before = {}
            changed = {name: each for name, each in found.items() if before.get(name) != each}
            news = to_json(changed) if before and changed else b""
            for reader in self._readers:
                if not reader.has_whole or not before:
                    self._tell_whole(reader)
                elif changed:
                    reader.tell("change", news)

    def _tell_size(self, index: Index) -> None:
        index.touch()
        try:
            upto = index.upto()
            size = {"upto": upto, "count": index.count(upto=upto), "indexing": index.indexing}
        except Exception:
            logger.exception("the index failed", extra={"action": "view_live_failed"})
            return
        with self._lock:
            if size != self._size:
                self._size = size
                for reader in self._readers:
                    reader.tell("index", to_json(size))
