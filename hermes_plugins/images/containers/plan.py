"""The container that a task needs."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_plugins.images.containers.host import ContainerSpec
from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox.base import WORKSPACE, SlotSpec
from hermes_queue.sandbox.services import ServiceSpec


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
