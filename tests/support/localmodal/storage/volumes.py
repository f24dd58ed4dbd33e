"""Volumes: each sandbox works on its own copy until it commits and reloads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from grpclib import GRPCError, Status

from localmodal.enclosure import Volume
from localmodal.host import Host
from localmodal.wire import Request, new_id

SYNC = Path(__file__).with_name("volume_sync.py")


class Volumes:
    """The volumes of one server.

    As on Modal, others see a sandbox's changes after these were committed (at its end or by its
    own reload) and they have reloaded. If two change the same file, the later commit wins.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._names: dict[tuple[str, str], str] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._mounted: dict[Path, list[tuple[Path, str, bool]]] = {}
        """A sandbox's directory -> the directory, the id and whether read-only of each volume."""
        self._script = host.directory / "volume_sync.py"
        self._script.write_bytes(SYNC.read_bytes())
        self._script.chmod(0o644)

    def find(self, environment: str, name: str) -> str | None:
        """The id of a named volume."""
        return self._names.get((environment, name))

    def create(self, environment: str, name: str) -> str:
        """Create a volume; only its creator knows an unnamed one."""
        volume_id = new_id("vo", 22)
        self._host.owned_directory(self._committed(volume_id), 0o755)
        self._locks[volume_id] = asyncio.Lock()
        if name:
            self._names[environment, name] = volume_id
        return volume_id

    def _committed(self, volume_id: str) -> Path:
        return self._host.directory / "volumes" / volume_id

    async def attach(self, directory: Path, mounts: Iterable[Request]) -> tuple[Volume, ...]:
        """Copy the mounted volumes into `directory`, which belongs to one sandbox.

        Raises:
            GRPCError: a volume does not exist, or a sub-path is not a directory in it.
        """
        found: list[Volume] = []
        mounted = self._mounted[directory] = []
        for index, mount in enumerate(mounts):
            if mount.volume_id not in self._locks:
                raise GRPCError(Status.NOT_FOUND, f"no volume {mount.volume_id}")
            place = self._host.owned_directory(directory / f"volume-{index}")
            mounted.append((place, mount.volume_id, mount.read_only))
            work = self._host.owned_directory(place / "work", 0o755)
            await self._sync("reload", place, mount.volume_id)
            source = _below(work, getattr(mount, "sub_path", ""))
            if not source.is_dir():
                await asyncio.to_thread(self._host.run, ["mkdir", "-p", "--", str(source)])
            found.append(Volume(source, mount.mount_path, mount.read_only))
        return tuple(found)

    async def commit(self, directory: Path) -> None:
        """Commit the changes of the sandbox with this directory."""
        await self._each(directory, ("commit",))

    async def reload(self, directory: Path) -> None:
        """Commit the sandbox's changes, then load those of others."""
        await self._each(directory, ("commit", "reload"))

    async def _each(self, directory: Path, operations: tuple[str, ...]) -> None:
        for place, volume_id, read_only in self._mounted[directory]:
            for operation in operations:
                if operation == "reload" or not read_only:
                    await self._sync(operation, place, volume_id)

    async def _sync(self, operation: str, place: Path, volume_id: str) -> None:
        python = str(self._host.python.executable)
        committed = str(self._committed(volume_id))
        argv = [python, "-IB", str(self._script), operation, str(place), committed]
        async with self._locks[volume_id]:  # two commits at once would mix their files
            await asyncio.to_thread(self._host.run, argv)


def _below(root: Path, sub_path: str) -> Path:
    """A directory in a volume, by a path without links.

    Raises:
        GRPCError: INVALID_ARGUMENT if the path contains a link or leaves the volume.
    """
    place = root
    for part in Path(sub_path.lstrip("/")).parts:
        place = place / part
        if part == ".." or place.is_symlink() or (place.exists() and not place.is_dir()):
            raise GRPCError(Status.INVALID_ARGUMENT, f"no directory {sub_path!r} in the volume")
    return place
