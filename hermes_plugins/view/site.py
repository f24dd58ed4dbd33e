"""What is shown, and to whom: all that the routes need, made once at the start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from hermes_plugins.view.assets import Assets
from hermes_plugins.view.findings import FindingFiles
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.present import Decoder
from hermes_plugins.view.tokens import Keys
from hermes_plugins.view.transcripts import Transcripts
from hermes_queue.bodies.reviews import ReviewFile, TrajectoryReview
from hermes_queue.ledger.ledger import Ledger

DECODED_AT_ONCE = 2
Tell = Callable[[str, Any], None]
"""Takes the name of an event and its data, or the data as JSON already; any thread may call it."""


class Live(Protocol):
    """Tells what changes in the deployment."""

    def subscribe(self, tell: Tell) -> AbstractContextManager[None]:
        """Tell of changes, beginning with the whole overview, until the block ends."""


@dataclass
class ViewSite:
    """All that routes need."""

    keys: Keys
    cookie: str
    """Name of the cookie: browsers know no ports, so it has the port in it."""
    deployment: str
    version: str
    assets: Assets
    index: Index
    sources: Sequence[Mapping[str, str]] = ()
    """kind and name of each, for people."""
    ledger: Ledger | None = None
    """None where Redis is no source."""
    overview: Callable[[], Mapping[str, Any]] | None = None
    """Reads what `hermes-queue status --json` prints; may raise RedisUnavailable."""
    live: Live | None = None
    transcripts: Transcripts | None = None
    tokenizer: Decoder | None = None
    actions: bool = False
    """Whether the role operate may act."""
    operator_url: str | None = None
    """Redis for actions, under a user that may write; None = that of everything else."""
    reviews: ReviewFile | None = None
    """Where labels are kept; None = nobody may give any."""
    findings: FindingFiles | None = None
    """What judges say of trajectories."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is about to end, so that streams end, too."""
    streams: int = 0
    """Open ones; counted by the thread of the event loop alone."""
    saving: int = 0
    """Records that are being saved; counted as `streams` are."""
    decoding: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(DECODED_AT_ONCE)
    )
    """Held while a record is read: each may take a gigabyte."""
    _shown_reviews: Mapping[str, TrajectoryReview] | None = None
    """Those that the index has."""
    _showing_reviews: threading.Lock = field(default_factory=threading.Lock)

    def problems(self) -> list[str]:
        """What is wrong with sources, labels and findings: for people, a sentence each."""
        found = list(self.index.problems)
        if self.reviews and self.reviews.damaged_lines:
            lines = self.reviews.damaged_lines
            found.append(f"{self.reviews.path.name}: lines that are no reviews: {lines}")
        bad = self.findings.bad_lines if self.findings else {}
        found += [f"{path.name}: lines that are no findings: {n}" for path, n in bad.items()]
        return found

    def show_reviews(self) -> Mapping[str, TrajectoryReview]:
        """The reviews that count, after the index has learnt of those that are new to it.

        Raises:
            HermesQueueError: the file cannot be read, or the index not written.
        """
        if self.reviews is None:
            return {}
        with self._showing_reviews:
            found = self.reviews.read()
            if found is not self._shown_reviews:
                labels = {name: each.label for name, each in found.items() if each.label}
                self.index.set_reviews(labels)
                self._shown_reviews = found
            return found
