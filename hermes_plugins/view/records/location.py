"""Where a record is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """The place of one record in one source. It is made by the source, never from a request."""

    source: str
    """`RecordSource.name`."""
    file: str
    """Name below the source, as the source listed it itself; the entry id in the stream."""
    offset: int = 0
    """First byte of the record; the row in a Parquet file."""
    length: int = 0
    """Bytes of the record; 0 in sources that need none."""
    member: str = ""
    """Name of the record there, if it has one: the key of its body."""
