"""Flags that choose the sandboxes of a run whose worker the producer starts itself.

Where workers run already, theirs are what their own settings say.
"""

from __future__ import annotations

import argparse

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox import profile_names
from hermes_queue.settings import PREFIX, SandboxSettings
from producers.run.numbers import at_least

_SETTINGS = {
    "sandbox": "SANDBOX_BACKEND",
    "modal_image": "MODAL_IMAGE",
    "modal_slots_per_sandbox": "MODAL_SLOTS_PER_SANDBOX",
    "modal_min_sandboxes": "MODAL_MIN_SANDBOXES",
}
"""Flag -> the setting it stands for."""


def add(group: argparse._ArgumentGroup) -> None:
    """Add them to a parser."""
    group.add_argument(
        "--sandbox",
        metavar="NAME",
        help="backend: local (default), modal, or package.module:Class",
    )
    group.add_argument(
        "--modal-image", metavar="IMAGE", help="registry name (default: python:3.11)"
    )
    group.add_argument(
        "--modal-slots-per-sandbox",
        type=at_least(1, 1000),
        metavar="N",
        help="trajectories that share a sandbox (default: 10)",
    )
    group.add_argument(
        "--modal-min-sandboxes",
        type=at_least(0, 1000),
        metavar="N",
        help="sandboxes kept running while the run lasts (default: 0)",
    )


def worker_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment variables that the flags stand for.

    Raises:
        ConfigurationError: a flag of one backend, and another is chosen.
    """
    given = {flag: value for flag in _SETTINGS if (value := getattr(arguments, flag)) is not None}
    backend = given.get("sandbox") or SandboxSettings().backend
    for flag in given:
        if flag.startswith("modal_") and backend != "modal":
            raise ConfigurationError(f"{_spelled(flag)} needs --sandbox modal")
    return {PREFIX + _SETTINGS[flag]: str(value) for flag, value in given.items()}


def check_profile(arguments: argparse.Namespace) -> None:
    """For a run whose worker starts here: know the profile before anything starts.

    Raises:
        ConfigurationError: that worker would not know it; the message lists those it has.
    """
    backend = arguments.sandbox or SandboxSettings().backend
    profile_names.check_profile(arguments.profile, backend)


def refuse(arguments: argparse.Namespace) -> None:
    """Say that workers which run already choose their sandboxes themselves.

    Raises:
        ConfigurationError: one of the flags was given.
    """
    for flag, setting in _SETTINGS.items():
        if getattr(arguments, flag) is not None:
            raise ConfigurationError(
                f"{_spelled(flag)}: the workers of this Redis choose their sandboxes; set "
                f"{PREFIX}{setting} where they are started"
            )


def _spelled(flag: str) -> str:
    return "--" + flag.replace("_", "-")
