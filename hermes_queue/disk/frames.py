"""An append-only file of checksummed frames, which detects a torn end by itself.

Sinks keep accepted payloads in it until they can be written in their final form. A frame is a
length and a CRC-32, both little-endian uint32, and the payload.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from hermes_queue.disk import locked as files
from hermes_queue.errors import ConfigurationError

logger = logging.getLogger(__name__)

_HEAD = struct.Struct("<II")


class FrameLog:
    """One writer's frames in `path`; the file begins with `magic`.

    Raises:
        ConfigurationError: it cannot be written, has another writer, begins otherwise, or is
            damaged before its end. A torn last frame was never acknowledged and is cut off.
    """

    def __init__(self, path: Path, magic: bytes) -> None:
        self.path = path
        self.magic = magic
        self._fd = files.open_locked(path)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""
        return os.lseek(self._fd, 0, os.SEEK_END)

    def append(self, payloads: Iterable[bytes]) -> None:
        """Add frames, all or none of them; they survive a power loss on return.

        Raises:
            HermesQueueError: the disk is full or failed.
        """
        data = bytearray()
        for payload in payloads:
            data += _HEAD.pack(len(payload), zlib.crc32(payload))
            data += payload
        files.append(self._fd, self.path, data)

    def __iter__(self) -> Iterator[bytes]:
        """The payloads, oldest first."""
        return (payload for _, payload in read_frames(self._fd, len(self.magic), self.path))

    def clear(self) -> None:
        """Remove all frames."""
        os.ftruncate(self._fd, len(self.magic))
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        begins = files.read_whole(self._fd, len(self.magic), 0)
        if len(begins) < len(self.magic) and self.magic.startswith(begins):
            os.ftruncate(self._fd, 0)
            files.append(self._fd, self.path, self.magic)
        elif begins != self.magic:
            raise ConfigurationError(
                f"{self.path}: begins with {begins!r} instead of {self.magic!r}: another "
                "program or version wrote it; it stays unchanged"
            )
        start = len(self.magic)
        ends = [end for end, _ in read_frames(self._fd, start, self.path)]
        end = ends[-1] if ends else start
        torn = self.size_bytes - end
        if torn:
            os.ftruncate(self._fd, end)
            extra = {"action": "frames_repaired", "path": str(self.path), "bytes": torn}
            logger.warning("%s: cut off a torn frame of %d bytes", self.path, torn, extra=extra)


def read_frames(fd: int, start: int, path: Path) -> Iterator[tuple[int, bytes]]:
    """(end, payload) of each frame from `start` on, up to a torn last one.

    Raises:
        ConfigurationError: a frame is damaged and others follow it.
    """
    size = os.fstat(fd).st_size
    while start + _HEAD.size <= size:
        length, checksum = _HEAD.unpack(files.read_whole(fd, _HEAD.size, start))
        end = start + _HEAD.size + length
        if end > size:
            return
        payload = files.read_whole(fd, length, start + _HEAD.size)
        if zlib.crc32(payload) != checksum or not length:
            if end < size and any(files.read_whole(fd, size - end, end)):
                raise ConfigurationError(f"{path}: is damaged at byte {start}")
            return
        yield end, payload
        start = end
