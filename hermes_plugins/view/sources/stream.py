"""The results stream in Redis: groups that have not been deleted yet, and their bodies."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.raw import MAX_RECORD_BYTES, UnreadableRecord, decode_raw
from hermes_plugins.view.sources.base import Batch, FoundRecord, Mark, RecordGone
from hermes_plugins.view.sources.entries import decoded_fields, found_members, members_of
from hermes_queue.bodies.store import ClaimCheck, ObjectLost, fetch, is_claim
from hermes_queue.errors import ConfigurationError, HermesQueueError, SchemaTooNew, StoreUnavailable
from hermes_queue.keyspace.connection import connect, explained, masked, redis_url
from hermes_queue.results.reader import STREAM
from hermes_queue.settings import RedisSettings

_PAGE = 16
"""Entries that one command returns: with their bodies, some megabytes."""
_LISTED = 500
_BODIES = 4
"""Bodies that one command returns."""
_WALK = "walk"
"""Name under which the mark of the whole stream is kept; no entry has it."""
_PARTIAL: Mark = {"partial": True}
_READ: Mark = {}
_LATER: Mark = {"later": True}
"""Of an entry with bodies in an object store that did not answer."""
_LATER_S = 60.0
_TIMEOUT_S = 5.0
"""Shorter than usual, and without another try: a person waits, and the index asks again anyway."""


class StreamSource:
    """The stream of one deployment, read with a user that needs no right to write.

    Raises:
        ConfigurationError, RedisUnavailable: Redis cannot be opened.
    """

    kind = "redis"

    def __init__(self, url: str | None = None) -> None:
        settings = RedisSettings()
        self._url = redis_url(settings, url)
        self._prefix = settings.prefix
        quick = {"socket_timeout_s": _TIMEOUT_S, "connect_timeout_s": _TIMEOUT_S}
        self._client: Any = connect(settings.model_copy(update=quick), url, retry=False)
        with explained(self._url):
            deployment = self._client.get(f"{self._prefix}deployment")
        here = f"{masked(self._url)}\0{self._prefix}".encode()
        identity = deployment if isinstance(deployment, bytes) else here
        self.name = "redis-" + hashlib.sha256(identity).hexdigest()[:16]
        self.title = masked(self._url)
        self.problems: list[str] = []
        self._later_at = 0.0
        """When the object store is asked again for what it did not give."""

    def scan(self, marks: Mapping[str, Mark | None]) -> Iterator[Batch]:
        """See `RecordSource.scan`. Each entry is a file of its own."""
        self.problems = []
        walk = marks.get(_WALK)
        known = {name: mark for name, mark in marks.items() if name != _WALK}
        with explained(self._url):
            for batch in self._walked(_Walk.of(walk), known):
                if not batch.removed and batch.file != _WALK:
                    known[batch.file] = batch.mark
                yield batch
            yield from self._missed(known)
            yield from self._completed(known)

    def read(self, location: Location) -> Mapping[str, Any]:
        """See `RecordSource.read`."""
        with explained(self._url):
            [stored] = self._client.mget([f"{self._prefix}body:{location.member}"])
        if stored is None:
            raise RecordGone("the record was deleted from Redis")
        try:
            return decode_raw(_body(stored))
        except (ObjectLost, SchemaTooNew, ConfigurationError, ValueError) as error:
            raise UnreadableRecord(str(error)) from error

    def close(self) -> None:
        """See `RecordSource.close`."""
        self._client.close()

    def _walked(self, walk: _Walk, known: Mapping[str, Mark | None]) -> Iterator[Batch]:
        """New entries, oldest first, while an earlier walk is going on; then the walk back."""
        if walk.high is None:
            newest = self._client.xrevrange(self._stream, count=1)
            if not newest:
                return
            walk.begin(newest[0][0].decode())
        elif walk.ended:
            newest = self._client.xrevrange(self._stream, count=1)
            if newest and _order(newest[0][0].decode()) > _order(walk.high):
                walk.begin(newest[0][0].decode())
        else:
            while entries := self._client.xrange(self._stream, f"({walk.high}", count=_PAGE):
                yield from self._batches(entries, summed_up=False)
                walk.high = entries[-1][0].decode()
                yield Batch(_WALK, mark=walk.mark())
        while not walk.ended:
            low = f"({walk.end}" if walk.end else "-"
            entries = self._client.xrevrange(self._stream, walk.next, low, count=_PAGE)
            new = [entry for entry in entries if known.get(entry[0].decode()) is None]
            yield from self._batches(new, summed_up=True)
            walk.step(entries[-1][0].decode() if entries else None)
            yield Batch(_WALK, mark=walk.mark())

    def _missed(self, known: Mapping[str, Mark | None]) -> Iterator[Batch]:
        """Entries that were deleted, and any that the walk has not seen."""
        oldest = self._client.xrange(self._stream, count=1)
        begin = _order(oldest[0][0].decode()) if oldest else (1 << 64, 0)
        trimmed = {name for name in known if _order(name) < begin}
        for name in sorted(trimmed, key=_order):
            yield Batch(name, removed=True)
        unread = any(mark is None for mark in known.values())
        if not unread and self._client.xlen(self._stream) == len(known) - len(trimmed):
            return
        there: set[str] = set()
        last = "-"
        while entries := self._client.xrange(self._stream, last, count=_LISTED):
            there.update(entry[0].decode() for entry in entries)
            new = [entry for entry in entries if known.get(entry[0].decode()) is None]
            yield from self._batches(new, summed_up=False)
            last = f"({entries[-1][0].decode()}"
        for name in known.keys() - trimmed - there:
            yield Batch(name, removed=True)

    def _completed(self, known: Mapping[str, Mark | None]) -> Iterator[Batch]:
        """The records of entries that are known by their summaries, newest first."""
        due = [_PARTIAL]
        if time.monotonic() > self._later_at:
            self._later_at = time.monotonic() + _LATER_S
            due.append(_LATER)
        partial = [name for name, mark in known.items() if mark in due]
        for name in sorted(partial, key=_order, reverse=True):
            entries = self._client.xrange(self._stream, name, name)
            yield from self._batches(entries, summed_up=False)

    def _batches(self, entries: Sequence[Any], *, summed_up: bool) -> Iterator[Batch]:
        for entry, raw in entries:
            name, fields = entry.decode(), decoded_fields(raw)
            members = members_of(fields)
            own = [each for each in members if not each.extra]
            if summed_up and own and all(each.summary for each in own):
                found = [each.summed_up(self._place(name, each.name)) for each in own]
                yield Batch(name, found, _PARTIAL)
                continue
            records, mark = self._records(name, fields, [each.name for each in members])
            if records is not None:
                yield Batch(name, records, mark)

    def _records(
        self, entry: str, fields: Mapping[str, str], names: list[str]
    ) -> tuple[Sequence[FoundRecord] | None, Mark]:
        """The members of an entry, and its mark.

        The members are None if it was deleted while their bodies were read.
        """
        stored: dict[str, bytes | None] = {}
        for at in range(0, len(names), _BODIES):
            some = names[at : at + _BODIES]
            keys = [f"{self._prefix}body:{name}" for name in some]
            stored.update(zip(some, self._client.mget(keys), strict=True))
        if None in stored.values() and not self._client.xrange(self._stream, entry, entry):
            return None, _READ
        mark = _READ
        bodies: dict[str, bytes | None] = {}
        problems: dict[str, str] = {}
        for name, value in stored.items():
            try:
                bodies[name] = None if value is None else _body(value)
            except (HermesQueueError, UnreadableRecord, ValueError) as error:
                problems[name] = str(error)
                if isinstance(error, StoreUnavailable | ConfigurationError):
                    mark = _LATER
                    self._note(str(error))
        return found_members(fields, bodies, lambda name: self._place(entry, name), problems), mark

    def _note(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < _BODIES:
            self.problems.append(problem)

    def _place(self, entry: str, name: str) -> Location:
        return Location(self.name, entry, member=name)

    @property
    def _stream(self) -> str:
        return self._prefix + STREAM


class _Walk:
    """How far the stream has been read: from `high` back to `next`, and all up to `end` before.

    Newest entries are read first. New ones come above `high` meanwhile, and when a walk has ended,
    the next one goes back to where it began.
    """

    def __init__(self, high: str | None, following: str, end: str) -> None:
        self.high = high
        self.next = following
        """The newest entry that is not read, as XREVRANGE takes it; "" = the walk has ended."""
        self.end = end
        """The entry down to which it goes, "" = to the beginning."""

    @classmethod
    def of(cls, mark: Mark | None) -> _Walk:
        """The walk of a mark; a new one if there is none, or another program's."""
        fields = [(mark or {}).get(name) for name in ("high", "next", "end")]
        high, following, end = (field if isinstance(field, str) else "" for field in fields)
        return cls(high or None, following, end)

    @property
    def ended(self) -> bool:
        return not self.next

    def begin(self, newest: str) -> None:
        self.end, self.high, self.next = self.high or "", newest, newest

    def step(self, last: str | None) -> None:
        self.next = f"({last}" if last else ""

    def mark(self) -> Mark:
        return {"high": self.high, "next": self.next, "end": self.end}


def _body(stored: bytes) -> bytes:
    """The body that Redis holds, or the object that its claim names."""
    if not is_claim(stored):
        return stored
    claim = ClaimCheck.parse(stored)
    if claim is None:
        raise UnreadableRecord("a damaged claim of a body")
    if claim.size_bytes > MAX_RECORD_BYTES:
        raise UnreadableRecord(f"{claim.size_bytes} bytes, of which {MAX_RECORD_BYTES} are shown")
    return fetch(claim)


def _order(entry: str) -> tuple[int, int]:
    """The id of an entry as numbers."""
    milliseconds, _, number = entry.partition("-")
    try:
        return int(milliseconds), int(number or 0)
    except ValueError:
        return 0, 0
