"""The frames of a file that others append to, past damaged ones.

`hermes_queue.disk.frames` ends at the first damaged frame, since a sink must not write behind it. A
viewer shows what is left.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgpack

from hermes_queue.disk.locked import read_whole

_HEAD = struct.Struct("<II")
MAX_FRAME_BYTES = 512 << 20
_BODIES_MOST = 1 << 16
"""Of one group, which has far fewer: a few bytes may name millions."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a file."""

    start: int
    """Offset of its payload."""
    end: int
    payload: bytes | None
    """None if it is damaged, or larger than `MAX_FRAME_BYTES`."""


def frames(fd: int, start: int, size: int | None = None) -> Iterator[Frame]:
    """Yield the frames from `start` on, up to one that does not end within the first `size` bytes.

    `size` is by default that of the file.
    """
    size = os.fstat(fd).st_size if size is None else size
    while start + _HEAD.size <= size:
        length, checksum = _HEAD.unpack(os.pread(fd, _HEAD.size, start))
        begin, end = start + _HEAD.size, start + _HEAD.size + length
        if end > size or not length:
            return
        payload = read_whole(fd, length, begin) if length <= MAX_FRAME_BYTES else None
        if payload is not None and (len(payload) < length or zlib.crc32(payload) != checksum):
            if end == size:  # it may still be written
                return
            payload = None
        yield Frame(begin, end, payload)
        start = end


def group_in(payload: bytes) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """The fields of a group and its bodies in a frame; None if it holds no group."""
    try:
        fields, bodies = msgpack.unpackb(
            payload, unicode_errors="replace", max_array_len=2, max_map_len=_BODIES_MOST
        )
    except (ValueError, TypeError, MemoryError, msgpack.UnpackException):
        return None
    return (fields, bodies) if isinstance(fields, dict) and isinstance(bodies, dict) else None
