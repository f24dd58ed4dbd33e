"""The slots with images of one local backend: what they start from, and their files."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import platform
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from hermes_plugins.images.permission import check_resources
from hermes_plugins.images.rootfs import changes as differences
from hermes_plugins.images.rootfs.fence import RootfsFence, RootfsOptions
from hermes_plugins.images.rootfs.first_process import MACHINES
from hermes_plugins.images.rootfs.host import RootfsHost
from hermes_plugins.images.rootfs.place import SlotPlace
from hermes_plugins.images.rootfs.slot import DiskUsage, HeldImage, RootfsSlot
from hermes_plugins.images.rootfs.steps import RootfsSteps
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.steps import Rootfs
from hermes_plugins.images.store import ImageStore
from hermes_queue.errors import IsolationUnavailable, SandboxError, SandboxRejected
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.host import cgroups
from hermes_queue.sandbox.host.paths import slot_directory
from hermes_queue.sandbox.host.spawner import Spawners
from hermes_queue.sandbox.host.user_namespaces import find_id_map
from hermes_queue.sandbox.image_slots import FileChange, refuse_beside_image
from hermes_queue.sandbox.local.fence import Bind
from hermes_queue.settings import LocalSandboxSettings

OLDEST_KERNEL = (5, 11)
"""overlayfs in user namespaces."""
MOST_FILES = 1_000_000
"""Of a slot, beside its image: a disk has a limited number, too."""
MOST_REMOVALS = 2
"""Trees that are deleted at a time, while others wait for their end: a disk may take minutes for
the folders that one agent can make in seconds."""
COMMITTED = "committed-"
"""Begins the names of images made by `commit`."""


def describe(rootfs: Rootfs) -> str:
    """For `Slot.image`."""
    return f"{rootfs.description} sha256:{rootfs.digest}"


class RootfsSlots:
    """Belongs to one event loop."""

    def __init__(self, cache: Path, settings: LocalSandboxSettings, spawners: Spawners) -> None:
        self.host = RootfsHost(cache)
        self._settings = settings
        self._permission = ImageSettings()
        self._spawners = spawners
        self._steps = RootfsSteps(self.host, settings)
        self._store = ImageStore(cache / "images", self._permission, self._steps)
        self._committed: dict[str, HeldImage] = {}
        self._removing: set[asyncio.Task[None]] = set()
        self._checking = asyncio.Lock()
        self._checked = False

    async def check(self, spec: SlotSpec) -> None:
        """Refuse what this worker does not allow, and see whether it can have images at all.

        Raises SandboxRejected: with the fix.
        """
        refuse_beside_image(spec, conceals=False)
        check_resources(
            self._permission,
            cpus=spec.cpus,
            memory_mb=spec.memory_mb,
            disk_mb=spec.disk_mb,
            network=spec.network,
        )
        async with self._checking:
            if not self._checked:
                try:
                    await self.host.check()
                except IsolationUnavailable as error:
                    why = f"slots with an image cannot be had on this host: {error}"
                    raise SandboxRejected(why) from error
                self._checked = True

    async def hold(self, image: ImageSpec) -> HeldImage:
        """The image, pulled or built now unless it is here. Raises: as `ImageStore.pin`."""
        name = image.reference or ""
        if name.startswith(COMMITTED):
            if (found := self._committed.get(name)) is None:
                raise SandboxRejected(f"the image {name} ended with the lease of its slot")
            return found.hold()
        pinned = await self._store.pin(image)
        return HeldImage(pinned.rootfs, pinned.release)

    def new(
        self, path: Path, spec: SlotSpec, image: HeldImage, binds: Sequence[Bind]
    ) -> RootfsSlot:
        """A slot that has not begun, with files below `path`. Raises IsolationUnavailable."""
        rootfs = image.rootfs
        memory_mb = self._settings.memory_mb if spec.memory_mb is None else spec.memory_mb
        pids = self._settings.max_pids
        groups = cgroups.create(
            f"hermes-queue-{path.name}", memory_mb=memory_mb, max_pids=pids, cpus=spec.cpus
        )
        options = RootfsOptions(
            layers=rootfs.layers,
            ids=self.host.ids,
            environment={**rootfs.config.env, **dict(spec.env)},
            workdir=os.path.normpath(spec.workdir or rootfs.config.workdir or "/"),
            binds=tuple(binds),
            network=spec.network == "open",
            groups=groups,
            limits=cgroups.process_limits(groups, memory_mb=memory_mb, max_pids=pids),
        )
        fence = RootfsFence(path.name, self.host.tools, SlotPlace(path), options, self._spawners)
        record, remove = path.with_suffix(".json"), self._remove_soon
        return RootfsSlot(fence, record, remove=remove, image=image, disk_mb=spec.disk_mb)

    async def begin(self, slot: RootfsSlot, user: str, upper: Path | None = None) -> None:
        """Start it, with the files of `upper`, which is moved. Raises SandboxError, OSError."""
        fence = slot.fence
        await asyncio.to_thread(fence.directories.create, owner=fence.options.uid, upper=upper)
        await fence.begin()
        await slot.become(user)
        most = DiskUsage(slot.disk_mb or self._settings.image_disk_mb, MOST_FILES)
        slot.limit_disk(most, self.host.measure)

    async def changes(self, slot: RootfsSlot) -> list[FileChange]:
        """See `ImageSlots`."""
        upper = slot.fence.directories.upper
        return await differences.changes(
            self.host, slot.image.rootfs.layers, upper, slot.fence.mount_points()
        )

    async def commit(self, slot: RootfsSlot) -> tuple[ImageSpec, Callable[[], None]]:
        """The slot's image and changes as an image, and what ends it. Raises SandboxError."""
        digest = secrets.token_hex(32)
        name = f"{COMMITTED}{digest[:24]}"
        layer = slot.fence.directories.root.with_name(name)
        try:
            await asyncio.to_thread(slot_directory, layer, owner=slot.fence.options.uid)
            await differences.copy(self.host, slot.fence.directories.upper, layer)
        except OSError as error:
            raise SandboxError(f"the slot's files cannot be copied: {error}") from error
        base = slot.image.hold()
        rootfs = dataclasses.replace(
            base.rootfs,
            layers=(*base.rootfs.layers, layer),
            digest=digest,
            description=f"{base.rootfs.description}, changed in a slot",
        )

        def free() -> None:
            base.release()
            self.forget(layer)

        held = self._committed[name] = HeldImage(rootfs, free, slot.image.accounts)

        def end() -> None:
            self._committed.pop(name, None)
            held.release()

        return ImageSpec(reference=name, digest=digest), end

    def forget(self, layer: Path) -> None:
        """Delete files of a slot that has ended, in the background."""
        removing = asyncio.create_task(asyncio.to_thread(self.host.discard, layer))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)

    async def _remove_soon(self, path: Path) -> None:
        """As `forget`, once few enough others are being deleted: so the disk does not fill up."""
        while len(self._removing) >= MOST_REMOVALS:
            await asyncio.wait(self._removing, return_when=asyncio.FIRST_COMPLETED)
        self.forget(path)

    async def close(self) -> None:
        """Free what it has; its slots have ended. Idempotent."""
        await asyncio.gather(*self._removing)
        await self._steps.close()


def can_have_images() -> bool:
    """Whether slots with images should work here; the first one of them finds out."""
    major, minor = os.uname().release.split(".")[:2]
    kernel = int(major), int("".join(c for c in minor if c.isdigit()) or 0)
    return kernel >= OLDEST_KERNEL and platform.machine() in MACHINES and find_id_map("").is_range
