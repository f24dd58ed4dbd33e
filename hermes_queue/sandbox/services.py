"""Services beside a slot: containers of their own, in one network with it.

A task may need more than its own box: a database, a web server. `SlotSpec.services` names them.
They are started before `acquire` and `renew` return, in the order of their dependencies, and are
new in every slot: nothing of a service outlives the lease or a `renew`. The slot and its services
reach each other by name, and nothing else unless `SlotSpec.network` is "open".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from hermes_queue.errors import SandboxError, SandboxRejected
from hermes_queue.images.spec import ImageSpec

if TYPE_CHECKING:
    from hermes_queue.sandbox.base import SandboxBackend, Slot, SlotSpec

HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
Readiness = Literal["started", "healthy", "completed"]
"""What a service waits for in another one; `completed`: it has ended with exit code 0."""


@dataclass(frozen=True, slots=True)
class ServiceHealthcheck:
    """A program in the service that exits with 0 as soon as the service is ready."""

    argv: tuple[str, ...]
    interval_s: float = 30.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    """Failures in this time after the service's start do not count."""
    retries: int = 3
    """Failures in a row after which the service counts as broken."""


@dataclass(frozen=True, slots=True)
class ServiceDependency:
    """Another service that must be there first."""

    service: str
    readiness: Readiness = "started"


@dataclass(frozen=True, slots=True)
class ServiceVolume:
    """A directory that lives as long as the services, and that several of them can share."""

    name: str
    target: str
    """Absolute path in the container."""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One service."""

    name: str
    """A host name, in which the slot and the other services find it."""
    image: ImageSpec
    aliases: tuple[str, ...] = ()
    """Further host names."""
    entrypoint: tuple[str, ...] | None = None
    """None = the image's; then the image's command is kept, too, unless `command` is set."""
    command: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()
    healthcheck: ServiceHealthcheck | None = None
    """A service with one is waited for until it is healthy."""
    depends_on: tuple[ServiceDependency, ...] = ()
    user: str | None = None
    """Name or uid with an optional group, as engines take it; None = the image's."""
    workdir: str | None = None
    cpus: float | None = None
    """Cores; None = the backend's default."""
    memory_mb: int | None = None
    """None = the backend's default."""
    volumes: tuple[ServiceVolume, ...] = ()
    tmpfs: tuple[str, ...] = ()
    """Absolute paths of directories in memory."""


class ServiceEnded(SandboxError):
    """A service of a slot has ended by itself, as agents can make it do."""


class ServiceSlots(Protocol):
    """What backends with `Capabilities.services` can do beside."""

    async def service(self, slot: Slot, name: str) -> Slot:
        """A running service as a slot, for commands, files and `changes`; its user is root.

        It is no lease: it must be neither released nor renewed, and ends with `slot`.

        Raises:
            SandboxRejected: there is no such service. Commands raise it if its image has no bash.
            ServiceEnded: it does not run any more.
            SlotLost: the slot is not leased, its container is gone, or somebody outside has killed
                the service.
            SandboxError: the sandbox could not answer.
        """
        ...


def possible_on(backend: SandboxBackend, spec: SlotSpec) -> SlotSpec:
    """The spec as it is. Raises SandboxRejected: slots of this backend have no services."""
    if spec.services and not backend.capabilities.services:
        names = ", ".join(service.name for service in spec.services[:5])
        raise SandboxRejected(
            f"the task has services beside its box ({names}), which need Docker Engine (Podman's "
            "networks leave its host in reach): set HERMES_QUEUE_SANDBOX_BACKEND=docker "
            "(--sandbox docker)"
        )
    return spec


def check_services(spec: SlotSpec, most: int) -> None:
    """Check what no host of containers could do.

    Raises:
        ValueError: names are no host names or not unique, dependencies are unknown or form a
            circle, or there are more than `most` services.
    """
    names = [service.name for service in spec.services]
    if len(names) > most:
        raise ValueError(f"{len(names)} services, and at most {most} are allowed")
    every = [*names, *spec.aliases]
    every += [alias for service in spec.services for alias in service.aliases]
    for name in every:
        if not HOST_NAME.fullmatch(name) or name == "localhost":
            raise ValueError(f"{name[:100]!r} is no host name")
        if every.count(name) > 1:
            raise ValueError(f"the name {name!r} is used twice")
    left = {each.name: {d.service for d in each.depends_on} for each in spec.services}
    while left:
        ready = [name for name, needed in left.items() if not needed & left.keys()]
        if unknown := {n for needed in left.values() for n in needed} - set(names):
            raise ValueError(f"a service depends on {min(unknown)!r}, which does not exist")
        if not ready:
            raise ValueError(f"the dependencies of {', '.join(sorted(left))} form a circle")
        for name in ready:
            del left[name]
