"""The container that a task needs: from its spec, the settings and its image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_queue.images.engine.hosted import HostedImage, described
from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox.base import WORKSPACE, SlotSpec
from hermes_queue.sandbox.containers.host import ContainerOptions, ContainerSpec, Mount
from hermes_queue.sandbox.containers.scripts import SLOT_UID, first_process
from hermes_queue.sandbox.services import ServiceSpec

RIGHTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETUID", "SETGID", "SYS_PTRACE")
"""Capabilities of root in slots whose commands run as another user: to make their directories, to
become that user, and to find and kill its processes. Commands have none of them."""


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Equal plans can share one stock of containers."""

    wanted: SlotSpec
    name: str
    """Of the image, for people and for the record."""
    spec: ContainerSpec
    """Without labels, which each container gets."""
    user: str
    """Who runs commands: a name or uid of the image."""
    config: ImageConfig | None
    """Of the task's image; None = the backend's own, whose slots are furnished."""
    workdir: str = WORKSPACE
    uid: int | None = None
    """Who runs commands in a furnished slot; never anybody with a name in the image."""
    services: tuple[PlannedService, ...] = ()
    """A slot with some shares no stock: it gets a network of its own."""

    @property
    def description(self) -> str:
        """All images, for the record; equal only for equal ones."""
        others = (f"{each.service.name}: {each.plan.name}" for each in self.services)
        return "; ".join([self.name, *others])

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal for containers that can stand in for each other."""
        spec = self.spec
        limits = (spec.cpus, spec.memory_mb, spec.pids, spec.shm_mb, spec.disk_mb, spec.network)
        rest = (spec.capabilities, spec.no_new_privileges, spec.mounts, spec.env, self.uid)
        return (spec.image, self.wanted.workdir, *limits, *rest)


@dataclass(frozen=True, slots=True)
class PlannedService:
    """A service and its container."""

    service: ServiceSpec
    plan: ContainerPlan


def own_plan(
    settings: ContainerOptions,
    image: HostedImage,
    wanted: SlotSpec,
    mounts: Sequence[Mount] = (),
    uid: int = SLOT_UID,
) -> ContainerPlan:
    """For a task without an image, and for builds."""
    spec = ContainerSpec(
        image=image.image_id,
        command=first_process(uid),
        labels={},
        cpus=settings.cpus,
        memory_mb=settings.memory_mb,
        pids=settings.max_pids,
        shm_mb=settings.shm_mb,
        disk_mb=settings.disk_mb,
        capabilities=RIGHTS,
        mounts=tuple(mounts),
    )
    return ContainerPlan(wanted, described(settings.image, None, image), spec, "", None, uid=uid)


def image_plan(
    settings: ContainerOptions,
    image: HostedImage,
    name: str,
    wanted: SlotSpec,
    network: str,
    mounts: Sequence[Mount] = (),
) -> ContainerPlan:
    """For a task with an image; `name` describes it, `network` is a name for the host."""
    spec = ContainerSpec(
        image=image.image_id,
        command=first_process(None),
        labels={},
        cpus=wanted.cpus or settings.cpus,
        memory_mb=wanted.memory_mb or settings.memory_mb,
        pids=settings.max_pids,
        shm_mb=settings.shm_mb,
        disk_mb=wanted.disk_mb or settings.disk_mb,
        network=network,
        user="0" if image.config.user else "",
        # A task that names a user may mean that user to become root by sudo.
        no_new_privileges=wanted.user is None,
        env=wanted.env,
        mounts=tuple(mounts),
    )
    user = wanted.user or image.config.user or "0"
    workdir = wanted.workdir or image.config.workdir or "/"
    return ContainerPlan(wanted, name, spec, user, image.config, workdir)
