"""Plans of containers: from a task's spec, the settings and the image."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_plugins.containers.host import ContainerOptions
from hermes_plugins.containers.images.hosted import HostedImage, described
from hermes_plugins.images.containers.host import ContainerSpec, Mount
from hermes_plugins.images.containers.plan import ContainerPlan
from hermes_plugins.images.containers.scripts import SLOT_UID, first_process
from hermes_queue.sandbox.base import SlotSpec

RIGHTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETUID", "SETGID", "SYS_PTRACE")
"""Capabilities of root in slots whose commands run as another user: to make their directories, to
become that user, and to find and kill its processes. Commands have none of them."""


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
