"""Import of images from files: `docker save`, OCI layouts, and archives of root file systems."""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
import time
from pathlib import Path
from typing import IO

from pydantic import BaseModel

from hermes_plugins.images.dockerfile.evaluation import DEFAULT_PATH
from hermes_plugins.images.fetch.blobs import LayerBlob, add_layers, decompress, unpack
from hermes_plugins.images.fetch.documents import (
    INDEX_TYPES,
    MAX_DOCUMENT_BYTES,
    Configuration,
    Descriptor,
    MalformedImage,
    Manifest,
    ManifestIndex,
    SavedImage,
    check_digest,
    read,
)
from hermes_plugins.images.layers import layer_key
from hermes_plugins.images.names import ImageRecord
from hermes_plugins.images.permission import full_name
from hermes_plugins.images.store import ImageStore, PinnedImage
from hermes_queue.errors import InputError
from hermes_queue.images.spec import ImageConfig

MAX_MEMBERS = 5000
"""Members among which the manifest must be; archives of images have fewer than 500."""
ROOTFS_CONFIG = ImageConfig({"PATH": DEFAULT_PATH}, "/", "", (), ("/bin/sh",))
MANIFEST, INDEX = "manifest.json", "index.json"


class _SavedImages(BaseModel):
    images: tuple[SavedImage, ...]


class _Members:
    """The files of an archive by name, as found among its first members."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: dict[str, tuple[int, int]] = {}
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for number, member in enumerate(tar):
                if number >= MAX_MEMBERS:
                    break
                tar.members = []  # type: ignore[attr-defined]  # typeshed hides it
                if member.isfile():
                    name = member.name.removeprefix("./")
                    self._places[name] = (member.offset_data, member.size)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def copy(self, name: str, target: IO[bytes]) -> None:
        """Copy one file. Raises MalformedImage: it is not there, or cut off."""
        if name not in self._places:
            raise MalformedImage(f"it has no file {name[:200]}")
        offset, left = self._places[name]
        self._file.seek(offset)
        while left:
            chunk = self._file.read(min(left, 1 << 20))
            if not chunk:
                raise MalformedImage(f"it ends in {name[:200]}")
            target.write(chunk)
            left -= len(chunk)

    def document(self, name: str) -> bytes:
        """A small file. Raises MalformedImage: it is not there, or large."""
        offset, size = self._places.get(name, (0, -1))
        if not 0 <= size <= MAX_DOCUMENT_BYTES:
            raise MalformedImage(f"it has no file {name[:200]} of a proper size")
        self._file.seek(offset)
        return self._file.read(size)


async def import_archive(
    store: ImageStore, name: str, path: Path, config: ImageConfig | None = None
) -> ImageRecord:
    """Make the image of a file, or of a directory with an OCI layout, and name it.

    Args:
        store: Where to.
        name: Its name here; replaces an image of that name.
        path: An archive, compressed or not.
        config: For archives of a root file system, which say nothing about programs.

    Raises:
        InputError: it is no image; says what is wrong.
        SandboxRejected: it is not the name of an image.
        EnvInfraError, SandboxError: it could not be unpacked.
    """
    whole, pinned = full_name(name), PinnedImage(store.layers)
    most = max(store.settings.store_mb, 1) << 20
    store.layers.prepare()
    try:
        with store.layers.scratch() as plain:
            digest = await asyncio.to_thread(_plain, path, plain, most)
            members = await asyncio.to_thread(_Members, plain)
            if INDEX in members and "oci-layout" in members:
                record = await _from_layout(store, members, pinned, most)
            elif MANIFEST in members:
                record = await _from_saved(store, members, pinned, most)
            else:
                key = await _from_rootfs(store, plain, pinned, most, digest)
                record = key, config or ROOTFS_CONFIG, digest
        top, found, digest = record
        result = ImageRecord(whole, top, found, digest, "imported", path.name, time.time())
        store.names.put(result)
    except (MalformedImage, tarfile.TarError, OSError) as error:
        raise InputError(f"{path}: not an image that can be imported: {error}") from error
    finally:
        pinned.release()
    return result


_Found = tuple[str, ImageConfig, str]
"""Highest layer, configuration, digest."""


async def _from_rootfs(
    store: ImageStore, plain: IO[bytes], pinned: PinnedImage, most: int, digest: str
) -> str:
    key = layer_key(None, "rootfs", digest)
    await pinned.pin(key)

    async def fill(draft: Path) -> None:
        await unpack(store.layers, plain, draft, most, whiteouts=False)

    await store.layers.ensure(key, None, "root file system", fill)
    return key


async def _from_saved(
    store: ImageStore, members: _Members, pinned: PinnedImage, most: int
) -> _Found:
    data = b'{"images":' + members.document(MANIFEST) + b"}"
    images = read_saved(data)
    if len(images) != 1:
        raise MalformedImage(f"it holds {len(images)} images instead of one")
    configuration = members.document(images[0].config)
    return await _add(store, members, configuration, images[0].layers, pinned, most)


async def _from_layout(
    store: ImageStore, members: _Members, pinned: PinnedImage, most: int
) -> _Found:
    index = read(ManifestIndex, members.document(INDEX), INDEX)
    chosen = index.manifests[0] if len(index.manifests) == 1 else index.for_this_host()
    if chosen.media_type in INDEX_TYPES:
        chosen = read(ManifestIndex, _blob(members, chosen), "its index").for_this_host()
    manifest = read(Manifest, _blob(members, chosen), "its manifest")
    layers = [_blob_path(each) for each in manifest.layers]
    return await _add(store, members, _blob(members, manifest.config), layers, pinned, most)


async def _add(
    store: ImageStore,
    members: _Members,
    data: bytes,
    names: list[str] | tuple[str, ...],
    pinned: PinnedImage,
    most: int,
) -> _Found:
    configuration = read(Configuration, data, "its configuration")
    if len(configuration.rootfs.diff_ids) != len(names):
        raise MalformedImage(f"its configuration does not name its {len(names)} layers")

    def blob(name: str, diff_id: str) -> LayerBlob:
        async def fetch(file: IO[bytes]) -> None:
            await asyncio.to_thread(members.copy, name, file)

        return LayerBlob(diff_id, fetch, name)

    blobs = [blob(*each) for each in zip(names, configuration.rootfs.diff_ids, strict=True)]
    top = await add_layers(store.layers, blobs, pin=pinned.pin, max_bytes=most)
    return top, configuration.programs(), hashlib.sha256(data).hexdigest()


def read_saved(data: bytes) -> tuple[SavedImage, ...]:
    """The images of `{"images": <manifest.json>}`. Raises MalformedImage."""
    try:
        return _SavedImages.model_validate_json(data).images
    except ValueError as error:
        raise MalformedImage(f"{MANIFEST} is malformed: {str(error)[:300]}") from error


def _blob_path(descriptor: Descriptor) -> str:
    return f"blobs/{descriptor.digest.replace(':', '/')}"


def _blob(members: _Members, descriptor: Descriptor) -> bytes:
    data = members.document(_blob_path(descriptor))
    check_digest(data, descriptor.digest, _blob_path(descriptor))
    return data


def _plain(path: Path, target: IO[bytes], most: int) -> str:
    """Copy the archive without compression, and return its digest in hex.

    A directory with an OCI layout becomes an archive, whose digest nobody needs.
    """
    if not path.is_dir():
        with path.open("rb") as source:
            return decompress(source, target, most).removeprefix("sha256:")
    if not (path / "oci-layout").is_file():
        raise MalformedImage("a directory without `oci-layout`; archive it with tar")
    with tarfile.open(fileobj=target, mode="w") as tar:
        tar.add(path, arcname=".")
    return ""
