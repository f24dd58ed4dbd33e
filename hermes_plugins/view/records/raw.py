"""From bytes to a dict, without pydantic: a page never validates, and arrays stay packed.

Validation of a record of 75 KB takes seven times as long as unpacking it, and refuses what people
want to look at most: the record that is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgpack
import zstandard
from pydantic_core import from_json

from hermes_queue.bodies.codec import decompressor, unpacked_array
from hermes_queue.models import RECORD_VERSION

MAX_RECORD_BYTES = 128 << 20
"""Largest unpacked size of a record that is shown."""
MAX_ELEMENTS = 8 << 20
"""Most members of all lists and maps of a record together: each costs far more memory than the one
byte that it may take when packed."""

MAX_LENGTH = 1 << 20
"""Most members of one list or map of a body: its memory is taken as soon as its head is read, for
as many levels as a few bytes name. Arrays of tokens are no lists there."""

_NUMBERS = re.compile(rb"\[[0-9eE.,\s+-]{256,}\]")
"""A list of numbers in JSON: token ids, log-probabilities."""


class UnreadableRecord(Exception):
    """The bytes are no record that can be shown; the message says why in a few words."""


def decode_raw(frame: bytes) -> dict[str, Any]:
    """The record in the body `frame` as it was packed; its arrays are `PackedArray`s.

    Nothing is validated: any field may be missing or of any type. Text that is no UTF-8 has
    replacement characters.

    Raises:
        UnreadableRecord: it is no body, is too large, or a newer version wrote it.
    """
    packed = unpacked_bytes(frame)
    count = _Count()
    try:
        found = msgpack.unpackb(
            packed,
            ext_hook=_array,
            list_hook=count.items,
            object_hook=count.items,
            strict_map_key=False,
            max_array_len=MAX_LENGTH,
            max_map_len=MAX_LENGTH,
            unicode_errors="replace",
        )
    except UnreadableRecord:
        raise
    except (ValueError, TypeError, MemoryError, msgpack.UnpackException) as error:
        raise UnreadableRecord(f"not a record body: {_short(error)}") from error
    return checked(found)


def decode_json(line: bytes, *, numbers: bool = True) -> dict[str, Any]:
    """The record in a line of JSON.

    Args:
        line: one line of a file.
        numbers: False leaves long lists of numbers out, which are most of a record with tokens:
            enough for the index, and several times as fast.

    Raises:
        UnreadableRecord: as `decode_raw`.
    """
    if len(line) > MAX_RECORD_BYTES:
        raise UnreadableRecord(f"{len(line)} bytes, of which {MAX_RECORD_BYTES} are shown")
    data = line if numbers else _NUMBERS.sub(b"[]", line)
    if data.count(b",") > MAX_ELEMENTS:
        raise UnreadableRecord(f"more than {MAX_ELEMENTS} elements")
    try:
        found = from_json(data)
    except (ValueError, MemoryError):
        found = _slowly(data)
    return checked(found)


def unpacked_bytes(frame: bytes) -> bytes:
    """The msgpack in a body.

    Raises:
        UnreadableRecord: it is no body, or too large.
    """
    try:
        size = zstandard.frame_content_size(frame)
        if size < 0:
            raise UnreadableRecord("not a record body: it does not say its size")
        if size > MAX_RECORD_BYTES:
            raise UnreadableRecord(f"{size} bytes unpacked, of which {MAX_RECORD_BYTES} are shown")
        packed: bytes = decompressor().decompress(frame)
    except (zstandard.ZstdError, MemoryError) as error:
        raise UnreadableRecord(f"not a record body: {_short(error)}") from error
    return packed


def checked(found: object) -> dict[str, Any]:
    """`found` as a record.

    Raises:
        UnreadableRecord: it is no map, or a newer version wrote it.
    """
    if not isinstance(found, dict):
        raise UnreadableRecord(f"not a record: a {type(found).__name__}")
    version = found.get("schema_version")
    if isinstance(version, int) and version > RECORD_VERSION:
        raise UnreadableRecord(
            f"written by a newer hermes-queue (schema_version {str(version)[:20]}, this one reads "
            f"up to {RECORD_VERSION}): upgrade hermes-queue here"
        )
    return found


def _slowly(data: bytes) -> Any:
    """JSON that pydantic refuses, such as half a surrogate pair or a byte that is no UTF-8."""
    try:
        return json.loads(data.decode("utf-8-sig", errors="replace"))
    except RecursionError as error:
        raise UnreadableRecord("not a record: nested too deep") from error
    except (ValueError, MemoryError) as error:
        raise UnreadableRecord(f"not a record: {_short(error)}") from error


class _Count:
    """Counts the members of lists and maps while they are unpacked."""

    def __init__(self) -> None:
        self._left = MAX_ELEMENTS

    def items(self, made: Any) -> Any:
        self._left -= len(made)
        if self._left < 0:
            raise UnreadableRecord(f"more than {MAX_ELEMENTS} elements")
        return made


def _array(code: int, content: bytes) -> Sequence[float]:
    return unpacked_array(code, content)


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "..."
