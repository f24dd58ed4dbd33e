"""Rows of a source on disk: in memory is only where each lies, and what tells rows apart."""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, overload

import msgpack

from hermes_queue.wire.names import group_key
from producers.run.selection import SelectedItems
from producers.source import SelectedItem

LISTED_MAX = 50_000
"""Rows of a source of which each is remembered until the next start; of more only their number and
a sum over all of them."""
_ID, _CONTENT = 6, 4
"""Bytes of a row in a fingerprint: of its id, and of what it holds."""


def id_digest(instance_id: str) -> int:
    """64 bits that stand for an instance id."""
    return int.from_bytes(hashlib.blake2b(instance_id.encode(), digest_size=8).digest())


class StoredItems(MutableSequence[SelectedItem]):
    """Items in a nameless temporary file; about 30 bytes of memory each."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()
        self._descriptor, self._is_written = self._file.fileno(), True
        self._ends = array("Q")
        self.digests = array("Q")
        """`id_digest` of each item."""
        self.contents = array("Q")
        """64 bits of the hash of each item's content."""

    def append(self, value: SelectedItem) -> None:
        """Write an item down."""
        sha256 = value.item_sha256
        limits = dict(value.limits)
        parts = (value.place, value.instance_id, value.packed, value.size_bytes, sha256)
        data = msgpack.packb((*parts, bool(value.sha256), value.tamper_cases, limits, value.needs))
        self._file.write(data)
        self._is_written = False
        self._ends.append((self._ends[-1] if self._ends else 0) + len(data))
        self.digests.append(id_digest(value.instance_id))
        self.contents.append(int(sha256[:16], 16))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> SelectedItem: ...

    @overload
    def __getitem__(self, index: slice) -> MutableSequence[SelectedItem]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self.stored(index).selected

    def stored(self, index: int, prefix: str = "", step: str | None = None) -> StoredItem:
        """An item with the hash of its content; its key has `prefix` and `step`."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        start = self._ends[index - 1] if index else 0
        if not self._is_written:
            self._file.flush()
            self._is_written = True
        data = os.pread(self._descriptor, self._ends[index] - start, start)
        place, instance_id, packed, size, sha256, is_large, cases, *rest = msgpack.unpackb(data)
        large = sha256 if is_large else ""
        key = group_key(f"{prefix}{instance_id}", step=step)
        item = SelectedItem(place, instance_id, key, packed, size, large, tuple(cases), *rest)
        return StoredItem(item, sha256)

    def insert(self, index: int, value: SelectedItem) -> NoReturn:
        """Not possible."""
        raise TypeError("stored items are only appended")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        self.insert(0, value)

    def __delitem__(self, index: Any) -> NoReturn:
        raise TypeError("stored items are only appended")

    def close(self) -> None:
        """Delete the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item and the hash of its content."""

    selected: SelectedItem
    sha256: str


@dataclass(slots=True)
class StoredSelection(SelectedItems):
    """The rows of a source."""

    items: StoredItems = field(default_factory=StoredItems)
    _places: dict[int, int] = field(default_factory=dict)

    def remember(self, item: SelectedItem) -> None:
        """See `SelectedItems`."""
        self._places[id_digest(item.instance_id)] = len(self.items)

    def first(self, instance_id: str) -> SelectedItem | None:
        """See `SelectedItems`."""
        place = self._places.get(id_digest(instance_id))
        return None if place is None else self.items[place]

    def complete(self) -> None:
        """Free what only reading needs."""
        self._places.clear()


def fingerprint(items: StoredItems) -> bytes:
    """What the next start compares the rows with."""
    head = f"{len(items)} {_sum(items):016x} ".encode()
    if len(items) > LISTED_MAX:
        return head
    rows = sorted(
        digest.to_bytes(8)[:_ID] + content.to_bytes(8)[:_CONTENT]
        for digest, content in zip(items.digests, items.contents, strict=True)
    )
    return head + b"".join(rows)


def _sum(items: StoredItems) -> int:
    """The same for the same rows in any order."""
    total = 0
    for digest, content in zip(items.digests, items.contents, strict=True):
        total += (digest ^ (content * 0x9E3779B97F4A7C15)) & 0xFFFFFFFFFFFFFFFF
    return total & 0xFFFFFFFFFFFFFFFF


def differences(before: bytes, after: bytes) -> str:
    """What has changed between two fingerprints, for people; "" = nothing."""
    if before == after:
        return ""
    try:
        (was, old), (now, new) = _read(before), _read(after)
    except ValueError:
        return "rows cannot be compared with those of the last start"
    if before.split(b" ", 2)[:2] == after.split(b" ", 2)[:2]:
        return ""
    if old is None or new is None:
        return f"rows have changed: {was} before, {now} now"
    added, removed = len(new.keys() - old.keys()), len(old.keys() - new.keys())
    changed = sum(old[row] != new[row] for row in old.keys() & new.keys())
    parts = (f"{added} added", f"{removed} removed", f"{changed} changed")
    return f"rows: {', '.join(parts)} ({was} before, {now} now)"


def _read(data: bytes) -> tuple[int, dict[bytes, bytes] | None]:
    count, _, rows = data.split(b" ", 2)
    number, width = int(count), _ID + _CONTENT
    if not rows and number > LISTED_MAX:
        return number, None
    if len(rows) != number * width:
        raise ValueError("cut off")
    return number, dict(_pairs(rows, width))


def _pairs(rows: bytes, width: int) -> Iterable[tuple[bytes, bytes]]:
    for start in range(0, len(rows), width):
        yield rows[start : start + _ID], rows[start + _ID : start + width]
