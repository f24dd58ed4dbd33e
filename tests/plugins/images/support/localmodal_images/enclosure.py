"""A sandbox whose root is an image: the fence of slots with images.

No program of the image is needed to start commands, and none can stand between us and them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from localmodal.enclosure import Enclosure

from hermes_plugins.images.rootfs.fence import PATH, RootfsFence, RootfsOptions
from hermes_plugins.images.rootfs.place import SlotPlace
from hermes_plugins.images.rootfs.slot import DiskUsage, HeldImage, overfull
from hermes_plugins.images.rootfs.slots import MOST_FILES
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.host import cgroups
from hermes_queue.sandbox.host.bubblewrap import Bubblewrap
from hermes_queue.sandbox.host.execution import Running
from hermes_queue.settings import LocalSandboxSettings
from localmodal_images.builds import ImageBuilds

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RootedEnclosure(Enclosure):
    """See `Enclosure`; `files` and `capabilities` are not used."""

    image: HeldImage
    builds: ImageBuilds
    workdir: str
    cpus: float | None
    """Limit of cores; None = unlimited."""
    is_rooted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.image.hold()
        self._holds_image = True
        self.place = SlotPlace(self.directory / "root", name="modal")
        self._fence: RootfsFence | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def fence(self) -> RootfsFence:
        """Once it has started."""
        if self._fence is None:
            raise SandboxError("the sandbox has not started")
        return self._fence

    async def start(self) -> None:
        """See `Enclosure`."""
        if any(not volume.read_only for volume in self.volumes):
            raise SandboxError("localmodal mounts volumes only read-only in its built images")
        memory_mb, pids = self.memory_mb, self.max_pids
        self._groups = cgroups.create(
            f"hermes-queue-{self.sandbox_id}", memory_mb=memory_mb, max_pids=pids, cpus=self.cpus
        )
        options = RootfsOptions(
            layers=self.image.rootfs.layers,
            ids=self.host.ids,
            environment={},
            workdir=self.workdir or "/",
            binds=tuple((str(each.source), each.target, True) for each in self.volumes),
            network=self.network,
            groups=self._groups,
            limits=cgroups.process_limits(self._groups, memory_mb=memory_mb, max_pids=pids),
        )
        spawners = self.builds.spawners
        fence = RootfsFence(self.sandbox_id, self.host.tools, self.place, options, spawners)
        await asyncio.to_thread(self.place.create, owner=options.uid)
        self._fence = fence
        await fence.begin()
        self.mount_points = fence.mount_points()
        self._record(fence.init_pid, fence.init_started)
        self._watching = asyncio.create_task(self._watch_disk())

    async def _watch_disk(self) -> None:
        """End the sandbox when its files take more disk space than a slot of this host may."""
        most = DiskUsage(LocalSandboxSettings().image_disk_mb, MOST_FILES)
        measure = self.builds.host.measure
        why = await overfull(self.place.upper, self.fence.init_pid, most, measure)
        extra = {"action": "sandbox_disk_full"}
        logger.warning("%s is ended: %s", self.sandbox_id, why, extra=extra)
        await self.fence.kill()

    def bubblewrap(self) -> Bubblewrap:
        """See `Enclosure`."""
        return self.fence

    def is_alive(self) -> bool:
        """See `Enclosure`."""
        return self._fence is not None and self._fence.is_alive()

    def start_command(
        self,
        cwd: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> Running:
        """See `Enclosure`."""
        return self.fence.spawner.start(
            argv, env=environment, cwd=cwd, streams=streams, account=self.fence.account
        )

    def environment(self) -> dict[str, str]:
        """See `Enclosure`."""
        return {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}

    async def kill_tree(self, pid: int) -> None:
        """See `Enclosure`."""
        await self.fence.kill_tree(None, pid)

    async def stop(self) -> None:
        """See `Enclosure`."""
        if self._watching is not None:
            await end_tasks(self._watching)
        if self._fence is not None:
            await self._fence.kill()
        if self._groups is not None:
            await asyncio.to_thread(self._groups.remove)
            self._groups = None
        self.let_go()
        if self._holds_image:
            self._holds_image = False
            self.image.release()
