"""What images can do, and what slots must not see in them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hermes_plugins.images.containers.host import ExecHost
from hermes_plugins.images.containers.plan import ContainerPlan
from hermes_plugins.images.containers.process import (
    ENDING_PAUSE_S,
    ENDING_ROUNDS,
    run_small,
)
from hermes_plugins.images.containers.scripts import BASH, PROBE, conceal
from hermes_queue.errors import EnvBug, SandboxError, SandboxRejected, SlotLost

NO_PROGRAM = (125, 126, 127)
"""Exit codes of engines that could not start the program."""


@dataclass(frozen=True, slots=True)
class ImageAbilities:
    """What is in an image."""

    python: str
    """Version of its python3, e.g. "3.11"; "" = none."""
    lacks: frozenset[str] = frozenset()


class Probes:
    """Looks once into every image."""

    def __init__(self, host: ExecHost) -> None:
        self._host = host
        self._known: dict[str, ImageAbilities] = {}
        self._users: set[tuple[str, str]] = set()
        """Images and their users that are known."""
        self._clean: set[tuple[str, tuple[str, ...]]] = set()
        """Images without these packages."""

    def known(self, image_id: str) -> ImageAbilities | None:
        """What was found in an image."""
        return self._known.get(image_id)

    async def check(self, container: str, plan: ContainerPlan) -> None:
        """Look into a new container's image, and make the task's working directory.

        Raises SandboxRejected: it cannot hold slots; EnvBug: the directory cannot be made.
        """
        image = plan.spec.image
        if image not in self._known:
            self._known[image] = await self._look(container, plan)
        found = self._known[image]
        needed = {"timeout", "env"} | ({"setpriv"} if plan.uid is not None else set())
        if missing := needed & found.lacks:
            raise SandboxRejected(
                f"image {plan.name} cannot hold slots, it lacks {', '.join(sorted(missing))}: "
                "install bash, coreutils and, for slots without an image of their own, util-linux "
                "in it"
            )

        await self._check_user(container, plan)
        if plan.wanted.workdir:
            make = ("/bin/mkdir", "-p", "--", plan.wanted.workdir)
            done = await run_small(self._host, container, make)
            if done.exit_code != 0:
                raise EnvBug(f"workdir {plan.wanted.workdir}: {done.output.strip()[-300:]}")

    async def _check_user(self, container: str, plan: ContainerPlan) -> None:
        """Refuse users that the image does not have: engines refuse each of their commands."""
        key = (plan.spec.image, plan.user)
        if plan.uid is not None or plan.wanted.user is None or key in self._users:
            return
        try:
            done = await run_small(self._host, container, ("/bin/true",), user=plan.user)
            why = "" if done.exit_code == 0 else done.output
        except SlotLost:
            raise
        except SandboxError as error:
            why = str(error)
        if why:
            raise SandboxRejected(
                f"image {plan.name} has no user {plan.user!r}, whom the task names: "
                f"{why.strip()[-200:]}"
            )
        self._users.add(key)

    async def _look(self, container: str, plan: ContainerPlan) -> ImageAbilities:
        try:
            done = await run_small(self._host, container, (*BASH, PROBE))
        except SandboxRejected as error:  # some engines refuse to start what is not there
            raise _without_bash(plan, str(error)) from error
        if done.exit_code in NO_PROGRAM:
            await self._check_alive(container, done.output)
            raise _without_bash(plan, done.output)
        if done.exit_code != 0:
            raise SandboxError(f"image {plan.name} could not be looked at: {done.output[-300:]}")
        words = [word.partition("=")[::2] for word in done.stdout.decode().split()]
        lacks = frozenset(value for name, value in words if name == "lacks")
        return ImageAbilities(dict(words).get("python", ""), lacks)

    async def _check_alive(self, container: str, why: str) -> None:
        """Raise SlotLost if a program did not start because the container has ended.

        Hosts may learn of that a little later.
        """
        for _ in range(ENDING_ROUNDS):
            if not (await self._host.state(container)).running:
                raise SlotLost(f"the container has ended: {why.strip()[-200:]}")
            await asyncio.sleep(ENDING_PAUSE_S)

    async def conceal(self, container: str, plan: ContainerPlan, names: tuple[str, ...]) -> None:
        """Hide Python packages. Raises SandboxRejected: root of the slot would see them."""
        if (plan.spec.image, names) in self._clean:
            return
        done = await run_small(self._host, container, conceal(names), timeout_s=120.0)
        if done.exit_code != 0:
            raise SandboxError(f"packages cannot be hidden: {done.output.strip()[-300:]}")
        if not done.stdout:
            self._clean.add((plan.spec.image, names))
        elif plan.uid is None:
            places = ", ".join(done.stdout.decode("utf-8", "replace").splitlines()[:3])
            raise SandboxRejected(
                f"image {plan.name} shows slots the subject of the job, at {places}: remove it "
                "from the image"
            )


def _without_bash(plan: ContainerPlan, why: str) -> SandboxRejected:
    return SandboxRejected(
        f"image {plan.name} cannot hold slots, it has no /bin/bash: install bash in it "
        f"({why.strip()[-200:]})"
    )
