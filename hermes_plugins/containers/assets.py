"""Assets on this host's disk, built in containers and mounted into slots.

A build has no network: the only way out is a port on its loopback, which a relay carries to this
worker's proxy, and that reaches the package indexes alone (`hermes_queue.sandbox.builds`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from hermes_plugins.containers.box import ContainerBox
from hermes_plugins.containers.host import ContainerHost, ContainerOptions
from hermes_plugins.containers.images.hosted import HostedImage
from hermes_plugins.containers.plan import own_plan
from hermes_plugins.images.containers.host import Mount
from hermes_plugins.images.containers.plan import ContainerPlan
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxRejected
from hermes_queue.sandbox.base import MAX_FILE_BYTES, AssetSpec, ExecutionResult, SlotSpec
from hermes_queue.sandbox.builds.hosts import BuildHosts
from hermes_queue.sandbox.builds.network import build_variables, with_refusals
from hermes_queue.sandbox.builds.proxy import BuildProxy
from hermes_queue.sandbox.host import pip as pip_settings
from hermes_queue.sandbox.host.paths import SLOT_UID, is_root
from hermes_queue.sandbox.local.assets import AssetStore, check_asset, read_regular_file

logger = logging.getLogger(__name__)

BUILD_MEMORY_MB = 4096

MakeBuildBox = Callable[[ContainerPlan], Awaitable[ContainerBox]]
Drop = Callable[[ContainerBox], Awaitable[None]]


class ContainerAssets:
    """The assets of one image, as directories of this host; see `AssetStore`."""

    def __init__(
        self,
        cache: Path,
        settings: ContainerOptions,
        host: ContainerHost,
        make: MakeBuildBox,
        drop: Drop,
    ) -> None:
        self._cache = cache
        self._settings = settings
        self._host = host
        self._make, self._drop = make, drop
        self._stores: dict[str, AssetStore] = {}

    def _store(self, image: HostedImage) -> AssetStore:
        """Files that were compiled or linked in one image may not work in another."""
        key = image.image_id.rpartition(":")[2][:16]
        if key not in self._stores:
            place = self._cache / "containers" / "images" / key

            async def build(spec: AssetSpec, directory: Path) -> ExecutionResult:
                return await self._build(image, spec, directory)

            self._stores[key] = AssetStore(place, build)
        return self._stores[key]

    async def ensure(self, image: HostedImage, spec: AssetSpec) -> Mount:
        """The asset as a mount, built now unless it exists. Raises as `AssetStore.ensure`.

        Raises SandboxRejected: containers run on another machine.
        """
        check_asset(spec)
        if not self._host.facts.shares_files:
            raise SandboxRejected(
                f"the task needs the asset {spec.kind}, a directory of this host, and "
                f"{self._host.facts.asset_advice}"
            )
        return Mount(str(await self._store(image).ensure(spec)), spec.mount)

    async def read(
        self, image: HostedImage, spec: AssetSpec, path: str, *, max_bytes: int = MAX_FILE_BYTES
    ) -> bytes:
        """See `SandboxBackend.read_asset`."""
        place = Path((await self.ensure(image, spec)).source)
        return await asyncio.to_thread(read_regular_file, place, path, max_bytes=max_bytes)

    async def _build(self, image: HostedImage, spec: AssetSpec, directory: Path) -> ExecutionResult:
        """Run the script in a container whose only writable directory of ours is the asset's."""
        pip = await asyncio.to_thread(pip_settings.prepare, self._cache)
        mounts = [Mount(str(directory), spec.mount, writable=True)]
        mounts.append(Mount(str(pip.package), pip_settings.MOUNT))
        mounts += [Mount(str(path), str(path)) for path in pip.readable]
        owner = SLOT_UID if is_root() else os.getuid()
        uid = 0 if self._host.facts.rootless else owner
        plan = own_plan(self._settings, image, SlotSpec(), mounts, uid)
        container = dataclasses.replace(
            plan.spec, memory_mb=max(BUILD_MEMORY_MB, self._settings.memory_mb)
        )
        box = await self._make(dataclasses.replace(plan, spec=container))
        slot_id = box.lease()
        proxy = BuildProxy(BuildHosts.of(dict(pip.environment), self._settings.build_hosts))
        try:
            port = await box.listen(slot_id, proxy.connection)
            url = f"http://{port.host}:{port.port}"
            result = await box.run(
                slot_id,
                ["/bin/bash", "-eu"],
                script=spec.script,
                env=build_variables(pip, url),
                cwd=spec.mount,
                timeout_s=spec.timeout_s,
            )
        finally:
            await unbroken(self._end(box, proxy))
        return with_refusals(result, proxy, spec)

    async def _end(self, box: ContainerBox, proxy: BuildProxy) -> None:
        await box.end_ports(stop=False)
        await proxy.close()
        await self._drop(box)
