"""Services of the agent's box while it is graded.

An agent reaches services through the network alone. What it has written there is data; programs of
a service change only if the service runs what its clients send, and then nothing that it says
counts any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from hermes_plugins.harbor.config import MAIN, CollectHook
from hermes_plugins.harbor.grading.places import Decisive
from hermes_plugins.harbor.grading.suspects import changed_programs
from hermes_plugins.harbor.task import TaskFolder
from hermes_queue.errors import EnvBug
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.services import ServiceEnded

_CODE = re.compile(r".*\.(?:py|pyc|pth|sh|so(?:\.[\d.]+)?|js|mjs|cjs|rb|pl|pm|php|lua|jar|class)")
"""Files of an image that a service may run, wherever they are."""

_AT_HOME = re.compile(r"/home/[^/]+(?:/\..*)?|/root/\..*")
"""Home folders, and what is hidden in them."""


async def run_hook(context: SlotContext, hook: CollectHook) -> str:
    """Run a collect hook where it belongs; what went wrong, else "". Raises SandboxError."""
    place = context
    if hook.service != MAIN:
        try:
            place = await context.service(hook.service)
        except ServiceEnded as error:
            return f"could not run: {error}"
    result = await place.run(hook.command, timeout_s=hook.timeout_s, user=hook.user)
    if result.ok:
        return ""
    return "timed out" if result.timed_out else f"ended with {result.exit_code}"


async def place_of(context: SlotContext, service: str | None) -> SlotContext | None:
    """Where an artifact is; None: its service has ended. Raises SandboxError."""
    if (service or MAIN) == MAIN:
        return context
    try:
        return await context.service(service or MAIN)
    except ServiceEnded:
        return None


def refuse_hiding(context: SlotContext) -> None:
    """Refuse volumes of the agent's box over what decides what runs: no list shows changes there.

    Raises:
        EnvBug: names the volume.
    """
    decisive = Decisive.of(context.slot.image_config, context.workspace)
    for volume in context.slot.spec.volumes:
        target = volume.target
        if decisive.leads_away(target) or decisive.holds(target) or _AT_HOME.fullmatch(target):
            raise EnvBug(
                f"services.{MAIN}.volumes: {volume.name}:{target} would hide what the agent "
                "changes among programs, their settings, or where the tests start: mount it at a "
                "folder of its own"
            )


async def check_not_killed(context: SlotContext) -> None:
    """Raise SlotLost if a service was killed from outside: by the host, or by somebody on it.

    What the agent or the tests made of that was not measured. One that has ended by itself, or
    because of its own limit of memory, is for the tests to see.

    Raises:
        SandboxError: the sandbox failed.
    """
    for service in context.slot.spec.services:
        with suppress(ServiceEnded):
            await context.service(service.name)


def asked(task: TaskFolder) -> set[str]:
    """Services that say something about the agent's work, by hooks and artifacts."""
    named = {hook.service for hook in task.verifier.collect}
    named |= {each.service or MAIN for each in task.artifacts}
    return named - {MAIN}


def names(task: TaskFolder) -> list[str]:
    """All services beside the task's box."""
    return [each.name for each in task.compose.services] if task.compose else []


async def changed_services(context: SlotContext, services: Iterable[str]) -> list[str]:
    """Programs of these services that differ from their images, as `SERVICE:PATH`.

    Raises:
        SandboxError: the sandbox failed.
    """
    found = []
    for name in sorted(services):
        try:
            place = await context.service(name)
        except ServiceEnded:  # and stays so
            continue
        changes = await place.changes()
        decisive = Decisive.of(place.slot.image_config, place.workspace)
        paths = set(changed_programs(changes, decisive))
        paths |= {
            each.path for each in changes if each.kind != "added" and _CODE.fullmatch(each.path)
        }
        found += [f"{name}:{path}" for path in sorted(paths)]
    return found
