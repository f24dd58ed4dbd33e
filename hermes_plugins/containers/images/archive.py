"""Images from archives: of a root file system, or as an engine saves them."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

from hermes_plugins.containers.images.client import EngineClient, progress, translated
from hermes_queue.errors import EnvInfraError

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 1800.0


async def load(client: EngineClient, archive: Path) -> None:
    """Load an archive of images, as `docker save` writes it. Raises EnvInfraError, SandboxError."""
    with translated(f"loading {archive}"):
        async with client.request(
            "images/load",
            "POST",
            data=_chunks(archive),
            headers={"Content-Type": "application/x-tar"},
            timeout_s=TIMEOUT_S,
        ) as response:
            _, problem = await progress(response)
    if problem:
        raise EnvInfraError(f"{archive} cannot be loaded: {problem}")


async def import_root(
    client: EngineClient, archive: Path, name: str, *, environment: dict[str, str] | None = None
) -> None:
    """Make an image called `name:tag` of an uncompressed archive of a root file system.

    Raises EnvInfraError, SandboxError.
    """
    lines = [f"ENV {key}={json.dumps(value)}" for key, value in (environment or {}).items()]
    params = {"fromSrc": "-", "repo": name}
    if lines:
        params["changes"] = "\n".join(lines)
    with translated(f"importing {archive}"):
        async with client.request(
            "images/create",
            "POST",
            params=params,
            data=_with_root(archive),
            headers={"Content-Type": "application/x-tar"},
            timeout_s=TIMEOUT_S,
        ) as response:
            _, problem = await progress(response)
    if problem:
        raise EnvInfraError(f"{archive} cannot be imported: {problem}")


async def _with_root(archive: Path) -> AsyncIterator[bytes]:
    """The archive, behind an entry for its root if it has none.

    Podman gives "/" a mode without write permission where the archive has no entry for it, and
    root without DAC_OVERRIDE could then make no directory there.
    """
    if not await asyncio.to_thread(
        _has_root, archive
    ):  # Docker refuses an entry that is there twice
        root = tarfile.TarInfo("./")
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        yield root.tobuf(tarfile.GNU_FORMAT)
    async for chunk in _chunks(archive):
        yield chunk


def _has_root(archive: Path) -> bool:
    with tarfile.open(archive, "r:") as tar:
        return any(not entry.name.strip("./") for entry in tar)


async def _chunks(archive: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(archive.open, "rb")
    try:
        while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield data
    finally:
        file.close()
