"""Options that choose the sandboxes of a run whose worker the producer starts itself.

Where workers run already, theirs are what their own settings say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox import profile_names
from hermes_queue.settings import PREFIX, SandboxSettings
from producers.run.flags import Options, flag
from producers.run.numbers import at_least

_SETTINGS = {"sandbox": "SANDBOX_BACKEND"}
"""Field -> the setting it stands for, where that has another name."""


@dataclass(frozen=True)
class SandboxOptions(Options):
    """Each option stands for a setting of the worker."""

    title: ClassVar[str] = "sandboxes, where everything runs here"
    sandbox: str | None = flag(
        "backend: local (default), modal, that of a plugin, or package.module:BACKEND",
        metavar="NAME",
    )
    modal_image: str | None = flag("registry name (default: python:3.11)", metavar="IMAGE")
    modal_slots_per_sandbox: int | None = flag(
        "trajectories that share a sandbox (default: 10)", type=at_least(1, 1000), metavar="N"
    )
    modal_min_sandboxes: int | None = flag(
        "sandboxes kept running while the run lasts (default: 0)",
        type=at_least(0, 1000),
        metavar="N",
    )

    def worker_settings(self) -> dict[str, str]:
        """The environment variables that the options stand for.

        Raises:
            ConfigurationError: an option of one backend, and another is chosen.
        """
        given = self.given()
        for name in given:
            if name.startswith("modal_") and self._backend != "modal":
                raise ConfigurationError(f"{_spelled(name)} needs --sandbox modal")
        return {_setting(name): str(value) for name, value in given.items()}

    def check_profile(self, profile: str) -> None:
        """For a run whose worker starts here: know the profile before anything starts.

        Raises:
            ConfigurationError: that worker would not know it; the message lists those it has.
        """
        profile_names.check_profile(profile, self._backend)

    def refuse(self) -> None:
        """Workers that run already choose their sandboxes themselves.

        Raises:
            ConfigurationError: one of the flags was given.
        """
        for name in self.given():
            raise ConfigurationError(
                f"{_spelled(name)}: the workers of this Redis choose their sandboxes; set "
                f"{_setting(name)} where they are started"
            )

    @property
    def _backend(self) -> str:
        return self.sandbox or SandboxSettings().backend


def _setting(name: str) -> str:
    return PREFIX + _SETTINGS.get(name, name.upper())


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")
