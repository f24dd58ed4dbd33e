"""What a host of containers must be able to do for slots with services.

Errors are those of `hermes_plugins.images.containers.host`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hermes_queue.errors import SandboxError

NETWORK_PREFIX = "hermes-queue-services-"
"""Of the networks that we make for slots, and of no others."""


class SubnetTaken(SandboxError):
    """Another network of the host has these addresses."""


class ContainerNetworks(Protocol):
    """Networks and volumes of one host of containers, by names that we choose."""

    async def make_network(
        self, name: str, labels: Mapping[str, str], *, subnet: str, is_open: bool
    ) -> None:
        """A network of containers that reach each other, and with `is_open` also others.

        Raises SubnetTaken.
        """

    async def make_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """An empty volume."""

    async def remove_network(self, name: str) -> None:
        """No-op if it is gone. Raises SandboxError, also if a container is in it."""

    async def remove_volume(self, name: str) -> None:
        """No-op if it is gone. Raises SandboxError, also if a container has it."""

    async def list_networks(self, labels: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """Names of all networks with these labels, and all of their labels."""
        ...

    async def list_volumes(self, labels: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """The same of volumes."""
        ...

    async def network_of(self, container: str) -> str | None:
        """The network that was made for a container's slot, if there is one."""
        ...

    async def halt(self, container: str, grace_s: int) -> None:
        """End its processes, by force after `grace_s`, and keep its files."""

    async def begin(self, container: str) -> None:
        """Start the first process of a container that was halted."""

    async def log_tail(self, container: str) -> str:
        """The end of its first process's output; "" if there is none."""
        ...
