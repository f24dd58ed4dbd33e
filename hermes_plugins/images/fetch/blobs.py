"""Compressed archives, decompressed within bounds, and layers made of them."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zstandard

from hermes_plugins.images.fetch.documents import MalformedImage
from hermes_plugins.images.layers import LayerStore, PinLayer, layer_key
from hermes_plugins.images.steps import LayerStack

CHUNK_BYTES = 1 << 20
MAX_WINDOW_BYTES = 1 << 27
"""Memory that decompressing may take: `zstd --ultra` and `xz -9` need as much."""
MAX_FILES = 2_000_000
MAX_RATIO = 2000
"""Bytes of one byte; gzip reaches 1,032 on empty disk images."""
LEAST_BYTES = 64 << 20

Fetch = Callable[[IO[bytes]], Awaitable[None]]
"""Writes a compressed or plain archive to the file."""


@dataclass(frozen=True, slots=True)
class LayerBlob:
    """A layer that can be had."""

    diff_id: str
    """`sha256:...` of its archive, not compressed; "" = unknown."""
    fetch: Fetch
    name: str
    """For people."""


def decompress(source: IO[bytes], target: IO[bytes], max_bytes: int) -> str:
    """Copy an archive of any common compression, or of none; returns `sha256:...` of the result.

    Blocking. Raises MalformedImage: it is damaged, or holds more than `max_bytes`.
    """
    source.seek(0, 2)
    size = source.tell()
    source.seek(0)
    most = min(max_bytes, max(size * MAX_RATIO, LEAST_BYTES))
    digest, written = hashlib.sha256(), 0
    try:
        for chunk in _chunks(source):
            written += len(chunk)
            if written > most:
                raise MalformedImage(f"it holds more than {most >> 20} MiB, from {size >> 20} MiB")
            digest.update(chunk)
            target.write(chunk)
    except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise MalformedImage(f"it is damaged: {error}") from error
    target.flush()
    return f"sha256:{digest.hexdigest()}"


def _chunks(source: IO[bytes]) -> Iterator[bytes]:
    head = source.read(6)
    source.seek(0)
    if head.startswith(b"\x1f\x8b"):
        reader: IO[bytes] = gzip.GzipFile(fileobj=source)  # type: ignore[assignment]
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(
            source, read_across_frames=True
        )
    elif head.startswith(b"BZh"):
        reader = bz2.BZ2File(source)
    elif head.startswith(b"\xfd7zXZ\0"):
        yield from _xz(source)
        return
    else:
        reader = source
    while chunk := reader.read(CHUNK_BYTES):
        yield chunk


def _xz(source: IO[bytes]) -> Iterator[bytes]:
    reader = lzma.LZMADecompressor(memlimit=2 * MAX_WINDOW_BYTES)
    data = b""
    while not reader.eof:
        if reader.needs_input and not (data := source.read(CHUNK_BYTES)):
            raise EOFError("it ends in the middle")
        yield reader.decompress(data, max_length=CHUNK_BYTES)
        data = b""


async def add_layers(
    layers: LayerStore, blobs: Sequence[LayerBlob], *, pin: PinLayer, max_bytes: int
) -> str:
    """Make the layers of an image, lowest first; returns the key of the highest.

    Raises:
        MalformedImage: an archive is damaged, too large, or another one.
        EnvInfraError: it holds something that cannot be part of an image.
        SandboxError: no room.
    """
    top: str | None = None
    for blob in blobs:
        key = layer_key(top, "archive", blob.diff_id)
        await pin(key)

        async def fill(draft: Path, blob: LayerBlob = blob) -> None:
            with layers.scratch() as packed, layers.scratch() as plain:
                await blob.fetch(packed)
                try:
                    found = await asyncio.to_thread(decompress, packed, plain, max_bytes)
                    if found != blob.diff_id:
                        raise MalformedImage(f"it has the digest {found} instead of {blob.diff_id}")
                except MalformedImage as error:
                    raise MalformedImage(f"{blob.name}: {error}") from error
                await unpack(layers, plain, draft, max_bytes, whiteouts=True)

        await layers.ensure(key, top, blob.name, fill)
        top = key
    if top is None:
        raise MalformedImage("the image has no layers")
    return top


async def unpack(
    layers: LayerStore, archive: IO[bytes], draft: Path, max_bytes: int, *, whiteouts: bool
) -> None:
    """Unpack a plain archive into a new layer. Raises EnvInfraError: it cannot be part of one."""
    options = {"max_bytes": max_bytes, "max_entries": MAX_FILES, "whiteouts": whiteouts}
    await layers.command(LayerStack((), draft), "unpack", options, stdin=archive)
