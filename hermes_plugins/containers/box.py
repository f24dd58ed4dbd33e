"""A container with the services beside it."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_plugins.containers.services.group import ServiceGroup
from hermes_plugins.images.containers.box import SlotBox


@dataclass(slots=True)
class ContainerBox(SlotBox):
    """A container with, at most, one lease, and its services."""

    group: ServiceGroup | None = None

    def bounds_mb(self) -> dict[str, int]:
        """What each of its containers may write; 0 = unlimited."""
        bounds = {self.container: self.plan.spec.disk_mb}
        if self.group is not None:
            for each in self.plan.services:
                if container := self.group.containers.get(each.service.name):
                    bounds[container] = each.plan.spec.disk_mb
        return bounds
