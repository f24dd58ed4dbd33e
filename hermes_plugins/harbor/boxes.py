"""The slots of a task: the agent's, and the verifier's if it has an image of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_plugins.harbor.config import EnvironmentTable, NetworkMode
from hermes_plugins.harbor.grading.needs import needs_of
from hermes_plugins.harbor.settings import HarborSettings
from hermes_plugins.harbor.task import TaskFolder
from hermes_plugins.harbor.templates import filled
from hermes_plugins.images.settings import ImageSettings
from hermes_queue.errors import EnvBug
from hermes_queue.images.spec import ImageSpec, Network
from hermes_queue.sandbox.base import SlotSpec


@dataclass(frozen=True, slots=True)
class Granted:
    """The network that a task gets in one phase."""

    network: Network
    note: str = ""
    """What it asked for, if it gets something else."""


def refuse_impossible(task: TaskFolder, *, validated: bool = False) -> None:
    """Refuse a task that cannot run here; nothing was started for it yet.

    A task that was `validated` may fetch what it likes while it is graded: that was measured.

    Raises:
        EnvBug: names every reason with its fix.
    """
    if problems := [*task.missing(), *task.unsupported()]:
        raise EnvBug("; ".join(problems))
    settings = HarborSettings()
    for table, place in (
        (task.verifier.env, "verifier.env"),
        (task.config.solution.env, "solution.env"),
    ):
        filled(table, settings.env, place=place)
    asked = [granted(task), granted(task, grading=True)]
    if settings.without_network == "refuse" and (note := _first(each.note for each in asked)):
        raise EnvBug(
            f"{note}; set HERMES_QUEUE_IMAGES_NETWORK=open to give it one, or "
            "HERMES_QUEUE_HARBOR_WITHOUT_NETWORK=run to run it without"
        )
    if not validated and granted(task, grading=True).network != "open":
        _refuse_fetching(task, kit=settings.kit)


def _refuse_fetching(task: TaskFolder, *, kit: bool) -> None:
    """Refuse tests that fetch what nobody provides: they would fail for every agent."""
    needs = needs_of(task.scripts, task.test_folders)
    if fetched := [*needs.other, *(() if kit else needs.packages)]:
        raise EnvBug(
            f"tests: they seem to fetch {', '.join(fetched[:3])}, and have no network while they "
            "run: set HERMES_QUEUE_IMAGES_NETWORK=open, or validate the task as it is and name "
            "the file with --validated"
        )


def granted(task: TaskFolder, *, grading: bool = False) -> Granted:
    """The network of the agent's phase or of grading, as task and fleet permit."""
    phase = task.verifier if grading else task.config.agent
    table = task.environment
    if grading and task.separate and task.verifier.environment is not None:
        table = task.verifier.environment
    mode: NetworkMode = phase.network_mode or table.network_mode or "public"
    who = "the verifier" if grading else "the task"
    if mode == "no-network":
        return Granted("none")
    if mode == "allowlist":
        return Granted("none", f"{who} asks for a network of some hosts, and slots have none")
    if ImageSettings().network != "open":
        return Granted("none", f"{who} asks for a network, and slots here have none")
    return Granted("open")


def agent_spec(task: TaskFolder, profile: str) -> SlotSpec:
    """The agent's slot.

    Raises:
        EnvBug: a variable of the task needs one of the worker's that it may not read.
    """
    table = task.environment
    image = _image(task, table, task.context)
    return SlotSpec(
        profile=profile,
        image=image,
        user=task.config.agent.user,
        env=filled(table.env, HarborSettings().env, place="environment.env"),
        cpus=table.cpus,
        memory_mb=table.memory_mb,
        disk_mb=table.storage_mb,
        network=granted(task).network,
        workdir=table.workdir,
        **_beside(task, image),
    )


def grading_spec(task: TaskFolder, profile: str) -> SlotSpec:
    """The slot in which the task is graded: the agent's image, or the verifier's own.

    Raises:
        EnvBug: as `agent_spec`.
    """
    table, context = task.environment, task.context
    if task.separate:
        own = task.verifier.environment
        named = own is not None and own.docker_image is not None
        if task.verifier_context is not None or named:
            table = own or EnvironmentTable()
            context = None if named else task.verifier_context
        elif own is not None:  # a fresh copy of the agent's image, with resources of its own
            table = own.model_copy(update={"docker_image": task.environment.docker_image})
    image = _image(task, table, context)
    return SlotSpec(
        profile=profile,
        image=image,
        user=task.verifier.user,
        env=filled(table.env, HarborSettings().env, place="environment.env"),
        cpus=table.cpus,
        memory_mb=table.memory_mb,
        disk_mb=table.storage_mb,
        network=granted(task, grading=True).network,
        workdir=table.workdir,
        **({} if task.separate else _beside(task, image)),
    )


def _beside(task: TaskFolder, main: ImageSpec) -> dict[str, Any]:
    """What a slot with the task's services needs for them."""
    if task.compose is None or not task.compose.services:
        return {}
    return {
        "services": task.compose.services_for(main),
        "aliases": task.compose.aliases,
        "volumes": task.compose.volumes,
    }


def _image(task: TaskFolder, table: EnvironmentTable, context: Path | None) -> ImageSpec:
    # The format prefers the image to the Dockerfile, which is then only how it was made.
    prebuilt = None if context and HarborSettings().force_build else table.docker_image
    built = str(context) if context and prebuilt is None else None
    return ImageSpec(
        reference=prebuilt,
        context=built,
        digest=task.context_digests.get(built, "") if built else "",
        build_timeout_s=table.build_timeout_s,
    )


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")
