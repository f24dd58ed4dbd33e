"""What a box gets for the tests before the agent's files: the kit, and a look at its Python."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from hermes_plugins.harbor.boxes import granted
from hermes_plugins.harbor.grading import kit
from hermes_plugins.harbor.grading.imported import Imported, imports_of, measured
from hermes_plugins.harbor.grading.needs import needs_of
from hermes_plugins.harbor.grading.pythons import find_pythons
from hermes_plugins.harbor.settings import HarborSettings
from hermes_plugins.harbor.task import TaskFolder
from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.archives import ROOT, FilesRefused
from hermes_queue.sandbox.context import SlotContext


@dataclass(frozen=True, slots=True)
class Provided:
    """What the tests were provided with."""

    variables: dict[str, str] = field(default_factory=dict)
    imported: Imported = field(default_factory=Imported)
    report: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """Names of what tests install among the packages of the box, and of what that needs."""

    @property
    def has_kit(self) -> bool:
        """Whether that is the kit."""
        return bool(self.variables)


async def provide(context: SlotContext, task: TaskFolder, agents: Container[str] = ()) -> Provided:
    """Provide what the tests fetch, if they have no network, and see what Python imports for them.

    `agents`: paths that the agent has added or changed in this box.

    Raises:
        EnvBug, EnvInfraError: what the tests fetch is not to be had.
        FilesRefused: the files in the box leave no room for it.
        SandboxError: the sandbox failed.
    """
    needs, asked = await asyncio.to_thread(_read, task)
    pythons = await find_pythons(context, agents)
    imported = Imported()
    if pythons:
        imported = await measured(context, pythons[0].path, asked, agents)
    if granted(task, grading=True).network == "open":
        return Provided(imported=imported)
    report = {"fetches": list(needs.other[:20])} if needs.other else {}
    if not needs.kit or not HarborSettings().kit:
        return Provided(imported=imported, report=report)
    user = verifier_user(context, task)
    found = await kit.install(context, needs, pythons, user=user, asked=asked)
    return Provided(found.variables, imported | found.imported, report, found.packages)


async def provide_untouched(context: SlotContext, task: TaskFolder) -> Provided:
    """The same for a fresh box, where nothing is the agent's doing. Raises no FilesRefused."""
    try:
        return await provide(context, task)
    except FilesRefused as error:
        raise EnvInfraError(f"on an untouched box: {error}") from error


def verifier_user(context: SlotContext, task: TaskFolder) -> str:
    """Who runs the tests: the task's choice, else the image's user."""
    config = context.slot.image_config
    return task.verifier.user or (config.user.partition(":")[0] if config else "") or ROOT


def _read(task: TaskFolder) -> Any:
    """What the tests fetch, and which modules they import. Blocking."""
    return needs_of(task.scripts, task.test_folders), set(imports_of(task.tests_text()))
