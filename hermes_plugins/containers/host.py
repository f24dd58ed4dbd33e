"""What a host of containers must be able to do: an engine, or a scheduler.

Errors are those of `hermes_plugins.images.containers.host`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hermes_plugins.containers.images.hosted import HostedImage
from hermes_plugins.images.containers.host import ContainerSpec, ExecFacts, ExecHost
from hermes_plugins.images.settings import ImageSettings
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import Capabilities, SandboxInfo
from hermes_queue.sandbox.image_slots import FileChange


@dataclass(frozen=True, slots=True)
class HostFacts(ExecFacts):
    """Facts about a host of containers, for people and for checks."""

    limits: tuple[str, ...] = ()
    """Limits that it does not enforce; each with the reason."""
    shares_files: bool = True
    """Whether it runs on this machine, so that containers can mount directories of ours."""
    rootless: bool = False
    remote: bool = False
    """Whether containers outlive this machine, so that the deployment's reaper looks after them."""
    commits: bool = True
    """Whether it can make an image of a container's files."""
    outside_changes: bool = True
    """Whether it lists a container's changes itself, without running anything in it."""
    asset_advice: str = (
        "the container engine runs on another one: give the worker an engine of its own host "
        "(HERMES_QUEUE_DOCKER_HOST=unix://...)"
    )
    """Why containers cannot mount directories of this machine, and the fix."""
    image_setting: str = "HERMES_QUEUE_DOCKER_IMAGE"
    """Names the image of slots whose tasks bring none."""
    private_networks: bool = False
    """Whether it makes networks of containers from which nothing else is reached, nor its host."""

    def capabilities(self, *, services: bool) -> Capabilities:
        """Those of a backend over such a host."""
        return Capabilities(
            isolation=True,
            remote=self.remote,
            images=True,
            commits=self.commits,
            outside_changes=self.outside_changes,
            services=services,
        )


class ContainerOptions(Protocol):
    """What the settings of every host of containers have; see `DockerSettings` for the meanings."""

    @property
    def image(self) -> str: ...  # noqa: D102
    @property
    def cpus(self) -> float: ...  # noqa: D102
    @property
    def memory_mb(self) -> int: ...  # noqa: D102
    @property
    def max_pids(self) -> int: ...  # noqa: D102
    @property
    def shm_mb(self) -> int: ...  # noqa: D102
    @property
    def disk_mb(self) -> int: ...  # noqa: D102
    @property
    def network(self) -> str: ...  # noqa: D102
    @property
    def warm(self) -> bool: ...  # noqa: D102
    @property
    def max_starting(self) -> int: ...  # noqa: D102
    @property
    def reap_s(self) -> float: ...  # noqa: D102
    @property
    def build_hosts(self) -> str: ...  # noqa: D102
    @property
    def max_services(self) -> int: ...  # noqa: D102
    @property
    def services_timeout_s(self) -> float: ...  # noqa: D102
    @property
    def services_subnet(self) -> str: ...  # noqa: D102


class HostImages(Protocol):
    """The images that a host's containers can have; see `EngineImages` for the contracts."""

    @property
    def images(self) -> ImageSettings:
        """What tasks may ask for."""
        ...

    async def own(self, name: str) -> HostedImage:
        """An image that the operator named in a setting."""
        ...

    async def ensure(self, spec: ImageSpec) -> tuple[HostedImage, str]:
        """The image of a task and its description."""
        ...


class ContainerHost(ExecHost, Protocol):
    """Makes containers, too."""

    @property
    def facts(self) -> HostFacts:
        """Known once it is open."""
        ...

    async def open(self) -> None:
        """Connect and check. Idempotent. Raises ConfigurationError or SandboxError."""

    async def close(self) -> None:
        """Idempotent, never raises."""

    async def create(self, spec: ContainerSpec) -> str:
        """A started container; its id. If it fails, a container of this name may be left."""
        ...

    async def changes(self, container: str, most: int) -> list[FileChange]:
        """The files in which it differs from its image, sorted; at most `most`."""
        ...

    async def commit(self, container: str, name: str, labels: Mapping[str, str]) -> HostedImage:
        """An image called `name` with the container's files."""
        ...

    async def remove(self, container: str) -> None:
        """End a container, by id or name, and delete its files. No-op if it is gone."""

    async def remove_image(self, name: str) -> None:
        """Delete an image. No-op if it is gone."""

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """All containers with these labels, also ended ones."""
        ...

    async def list_images(self, labels: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """Names of all images with these labels, and all of their labels."""
        ...

    async def written(self, labels: Mapping[str, str]) -> dict[str, int]:
        """Bytes that each container with these labels has written to its root file system."""
        ...

    async def network(self, name: str) -> str:
        """The network of slots that may reach others, made on first use."""
        ...
