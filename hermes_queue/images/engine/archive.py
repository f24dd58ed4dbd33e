"""Images from archives: of a root file system, or as an engine saves them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

from hermes_queue.errors import EnvInfraError
from hermes_queue.images.engine.client import EngineClient, progress, translated

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 1800.0


async def load(client: EngineClient, archive: Path) -> None:
    """Load an archive of images, as `docker save` writes it. Raises EnvInfraError, SandboxError."""
    with archive.open("rb") as file, translated(f"loading {archive}"):
        async with client.request(
            "images/load",
            "POST",
            data=file,
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
    repository, _, tag = name.rpartition(":")
    lines = [f"ENV {key}={json.dumps(value)}" for key, value in (environment or {}).items()]
    params = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": "\n".join(lines)}
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


class _Rooted(io.RawIOBase):
    """An archive behind an entry for its root.

    Podman gives "/" a mode without write permission where the archive has no entry for it, and
    root without DAC_OVERRIDE could then make no directory there.
    """

    def __init__(self, archive: Path) -> None:
        root = tarfile.TarInfo("./")
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        self._parts = iter([root.tobuf(tarfile.GNU_FORMAT)])
        self._file = archive.open("rb")

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """See `io.RawIOBase`."""
        data = next(self._parts, None)
        if data is None:
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """See `io.RawIOBase`."""
        self._file.close()
        super().close()


def _with_root(archive: Path) -> Iterator[bytes] | io.BufferedReader:
    return io.BufferedReader(_Rooted(archive), CHUNK_BYTES)
