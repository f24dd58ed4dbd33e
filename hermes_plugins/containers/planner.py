"""Plans for tasks, with all that their containers need: image, assets, network."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from collections.abc import Mapping, Sequence

from hermes_plugins.containers.assets import ContainerAssets
from hermes_plugins.containers.box import ContainerBox
from hermes_plugins.containers.host import ContainerHost, ContainerOptions, HostImages
from hermes_plugins.containers.images.hosted import HostedImage
from hermes_plugins.containers.plan import image_plan, own_plan
from hermes_plugins.containers.services.plan import service_plan
from hermes_plugins.containers.stock import Stock
from hermes_plugins.images.containers.host import Mount
from hermes_plugins.images.containers.plan import ContainerPlan, PlannedService
from hermes_plugins.images.containers.probes import Probes
from hermes_plugins.images.permission import check_resources
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import EnvBug, EnvInfraError, SandboxError, SandboxRejected, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.image_slots import refuse_beside_image
from hermes_queue.sandbox.services import ServiceSpec, check_services

logger = logging.getLogger(__name__)

COMMITS = "localhost/hermes-queue/commit"
"""Names of committed images; Podman gives this host to all that come from no registry."""


class Planner:
    """Makes plans for one backend."""

    def __init__(
        self,
        settings: ContainerOptions,
        host: ContainerHost,
        images: HostImages,
        assets: ContainerAssets,
        probes: Probes,
        stock: Stock,
    ) -> None:
        self._settings = settings
        self._host = host
        self._images = images
        self._assets = assets
        self._probes = probes
        self._stock = stock
        self.commits: dict[str, HostedImage] = {}
        """Committed images of slots whose leases have not ended, by name."""

    async def own_image(self) -> HostedImage:
        """The image of slots whose tasks bring none. Raises as `EngineImages.ensure`."""
        return await self._images.own(self._settings.image)

    async def plan(self, spec: SlotSpec) -> ContainerPlan:
        """The container for a task; its image and assets are there then.

        Raises as `EngineImages.ensure` and `ContainerAssets.ensure`; and SandboxRejected for more
        than this worker gives, EnvInfraError for a Python that the image does not have.
        """
        if spec.image is None:
            return await self._own_plan(spec)
        refuse_beside_image(spec, conceals=True)
        if spec.services:
            self._check_services(spec)
        image, name = await self._image(spec, spec.image)
        mounts = await self._mounts(await self.own_image(), spec) if spec.assets else []
        if spec.services:
            services = await asyncio.gather(*map(self._service, spec.services))
            plan = image_plan(self._settings, image, name, spec, "none", mounts)
            return dataclasses.replace(plan, services=tuple(services))
        network = "none"
        if spec.network != "none":
            network = await self._host.network(self._settings.network)
        return image_plan(self._settings, image, name, spec, network, mounts)

    async def _service(self, service: ServiceSpec) -> PlannedService:
        check_resources(
            self._images.images,
            cpus=service.cpus,
            memory_mb=service.memory_mb,
            disk_mb=None,
            network="none",
        )
        image, name = await self._images.ensure(service.image)
        planned = service_plan(self._settings, service, image, name)
        if not planned.plan.spec.command:
            raise EnvBug(
                f"service {service.name}: image {name} starts no program of its own: give the "
                "service a command"
            )
        return planned

    def _check_services(self, spec: SlotSpec) -> None:
        if not self._host.facts.private_networks:
            raise SandboxRejected(
                f"the task has services, and {self._host.facts.name} makes no networks from which "
                "its host is out of reach: use Docker Engine (HERMES_QUEUE_DOCKER_HOST)"
            )
        try:
            check_services(spec, self._settings.max_services)
        except ValueError as error:
            raise SandboxRejected(
                f"the task's services: {error} (HERMES_QUEUE_DOCKER_MAX_SERVICES="
                f"{self._settings.max_services})"
            ) from error

    async def _image(self, spec: SlotSpec, image: ImageSpec) -> tuple[HostedImage, str]:
        check_resources(
            self._images.images,
            cpus=spec.cpus,
            memory_mb=spec.memory_mb,
            disk_mb=spec.disk_mb,
            network=spec.network,
        )
        reference = image.reference or ""
        if reference in self.commits:
            return self.commits[reference], reference
        if reference.startswith(f"{COMMITS}:"):
            raise SandboxRejected(f"the slot of image {reference} has ended, and with it the image")
        return await self._images.ensure(image)

    async def _own_plan(self, spec: SlotSpec) -> ContainerPlan:
        image = await self.own_image()
        plan = own_plan(self._settings, image, spec, await self._mounts(image, spec))
        if spec.python is not None:
            await self._check_python(plan, spec.python)
        return plan

    async def _mounts(self, image: HostedImage, spec: SlotSpec) -> Sequence[Mount]:
        """The task's assets, built in containers of this image."""
        return await asyncio.gather(*(self._assets.ensure(image, each) for each in spec.assets))

    async def _check_python(self, plan: ContainerPlan, wanted: str) -> None:
        found = self._probes.known(plan.spec.image)
        if found is None:
            await self._stock.drop(await self._stock.new(plan, {}))  # a new container is probed
            found = self._probes.known(plan.spec.image)
        if found is not None and found.python != wanted:
            raise EnvInfraError(
                f"the job needs Python {wanted}, image {self._settings.image} has "
                f"{found.python or 'none'}: install it there, or name another image with "
                f"{self._host.facts.image_setting}"
            )

    # --- committed images -------------------------------------------------------------

    async def commit(self, box: ContainerBox, labels: Mapping[str, str]) -> ImageSpec:
        """Keep a slot's files as an image until its lease ends. Raises SandboxError."""
        slot_id, name = box.slot_id, f"{COMMITS}:{uuid.uuid4().hex}"
        box.commits.append(name)
        made = await unbroken(self._host.commit(box.container, name, labels))
        # The container was made with a first process of ours, the image's own is kept.
        config = box.plan.config or made.config
        self.commits[name] = dataclasses.replace(made, config=config)
        if not box.slot_id:  # released meanwhile
            await self.drop_commits(box)
            raise SlotLost(f"slot {slot_id} was released")
        return ImageSpec(name)

    async def drop_commits(self, box: ContainerBox) -> None:
        """Delete the images of a lease that has ended. Never raises."""
        for name in box.commits:
            self.commits.pop(name, None)
            try:
                await self._host.remove_image(name)
            except SandboxError as error:
                extra = {"action": "image_left"}
                logger.warning("image %s is left: %s", name, error, extra=extra)
