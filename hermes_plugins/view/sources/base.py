"""What a source of records is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_plugins.view.records.location import Location
from hermes_queue.errors import HermesQueueError

Mark = dict[str, Any]
"""How far a file was read, as JSON; its form is the source's own."""


class RecordGone(HermesQueueError):
    """The record is not at its place any more; the message says what happened to it."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """One record that a source has found, or the remains of one."""

    location: Location
    raw: Mapping[str, Any] | None
    """The record; None if it cannot be read."""
    problem: str = ""
    """Why it cannot be read."""
    bytes: int = 0
    """Its size as it is stored."""
    finished: float | None = None
    """When Redis accepted it; None = the source does not know."""
    extra: bool = False
    """Whether it is a sample outside its group."""
    stale: bool = False
    known: Mapping[str, Any] | None = None
    """Fields of the record that the source knows without it."""
    partial: bool = False
    """Whether `known` is enough for a row, until the record itself is read."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that were found together, and how far their file has been read with them.

    A batch is indexed with its mark in one transaction, so that a record is neither lost nor read
    twice if the process ends in between.
    """

    file: str
    """Name of the file below the source."""
    found: Sequence[FoundRecord] = ()
    mark: Mark | None = None
    """Mark of the file from now on; None = it has none."""
    begins: bool = False
    """Whether the file is read from its beginning again: places in it count only if they are found
    again before it `ends`."""
    ends: bool = False
    """Whether the file has been read to its end."""
    removed: bool = False
    """Whether the file is gone, with all places in it."""


class RecordSource(Protocol):
    """Where records are. `scan` is called by one thread, `read` by any."""

    @property
    def name(self) -> str:
        """Name of the source; the same in each process that has the same sources."""

    @property
    def kind(self) -> str:
        """redis, archive, jsonl or parquet."""

    @property
    def title(self) -> str:
        """What the source is, for people; without credentials."""

    @property
    def problems(self) -> Sequence[str]:
        """What was wrong with the source in the last scan: for people, a sentence each."""

    def scan(self, marks: Mapping[str, Mark | None]) -> Iterator[Batch]:
        """Yield what is new since `marks` (file -> mark), newest files first, and end.

        A batch may be empty: then only its mark, or the end of its file, is new.

        Raises:
            HermesQueueError: the source does not answer; what was yielded is valid.
        """

    def read(self, location: Location) -> Mapping[str, Any]:
        """The record at `location`, whole.

        Raises:
            RecordGone: it is not there any more.
            UnreadableRecord: it cannot be shown.
            HermesQueueError: the source does not answer.
        """

    def close(self) -> None:
        """Close files and connections. Idempotent."""
