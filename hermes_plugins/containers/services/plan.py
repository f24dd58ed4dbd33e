"""The container of a service, from its spec, the settings and its image."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hermes_plugins.containers.host import ContainerOptions
from hermes_plugins.containers.images.hosted import HostedImage
from hermes_plugins.images.containers.host import ContainerSpec, NetworkLink
from hermes_plugins.images.containers.plan import ContainerPlan, PlannedService
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.services import ServiceSpec, ServiceVolume

CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
    *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
)
"""Of root in a network with others: the engines' defaults without raw packets, which could reach
the host's side of the network, and without device files."""


def service_plan(
    settings: ContainerOptions, service: ServiceSpec, image: HostedImage, name: str
) -> PlannedService:
    """The container of a service; its place in a network is added when there is one."""
    own = image.config
    entrypoint = own.entrypoint if service.entrypoint is None else service.entrypoint
    command = service.command
    if command is None:
        command = own.command if service.entrypoint is None else ()
    spec = ContainerSpec(
        image=image.image_id,
        command=(*entrypoint, *command),
        labels={},
        cpus=service.cpus or settings.cpus,
        memory_mb=service.memory_mb or settings.memory_mb,
        pids=settings.max_pids,
        shm_mb=settings.shm_mb,
        disk_mb=settings.disk_mb,
        capabilities=CAPABILITIES,
        env=service.env,
        user=service.user or own.user,
        workdir=service.workdir or own.workdir,
        tmpfs=service.tmpfs,
        keeps_log=True,
        is_service=True,
    )
    wanted = SlotSpec(image=service.image, workdir=service.workdir or own.workdir)
    plan = ContainerPlan(wanted, name, spec, "0", own, service.workdir or own.workdir or "/")
    return PlannedService(service, plan)


def linked(
    spec: ContainerSpec,
    link: NetworkLink,
    volumes: tuple[ServiceVolume, ...],
    names: Mapping[str, str],
) -> ContainerSpec:
    """The container with its place in the network, and its volumes by the host's names."""
    known = tuple(dataclasses.replace(each, name=names[each.name]) for each in volumes)
    return dataclasses.replace(
        spec, link=link, volumes=known, capabilities=spec.capabilities or CAPABILITIES
    )
