"""Flags that choose the sandboxes of a run whose worker the producer starts itself.

Where workers run already, theirs are what their own settings say.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import suppress

from hermes_queue.errors import ConfigurationError, SandboxRejected
from hermes_queue.sandbox import find_backend, known_backends
from hermes_queue.sandbox.offers import Flag
from hermes_queue.settings import PREFIX, SandboxSettings
from producers.run.numbers import at_least

_BACKEND = Flag(
    "--sandbox",
    f"{PREFIX}SANDBOX_BACKEND",
    "backend: local (default), modal, or package.module:Class",
    metavar="NAME",
)


def add(group: argparse._ArgumentGroup) -> None:
    """Add them to a parser."""
    for _, flag in _flags():
        kind = at_least(*flag.bounds) if flag.bounds else str
        group.add_argument(flag.name, metavar=flag.metavar, help=flag.help, type=kind)


def worker_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment variables that the flags stand for.

    Raises:
        ConfigurationError: a flag of one backend, and another is chosen.
    """
    backend = _chosen(arguments)
    settings = {}
    for owner, flag in _flags():
        value = _value(arguments, flag)
        if value is None:
            continue
        if owner not in (None, backend):
            raise ConfigurationError(f"{flag.name} needs --sandbox {owner}")
        settings[flag.setting] = str(value)
    return settings


def check_profile(arguments: argparse.Namespace) -> None:
    """For a run whose worker starts here: know the profile before anything starts.

    Raises:
        ConfigurationError: that worker would not know it; the message lists those it has.
    """
    check = find_backend(_chosen(arguments)).check_profile
    try:
        if check is not None:
            check(arguments.profile)
    except SandboxRejected as error:
        raise ConfigurationError(f"--profile: {error}") from error


def refuse(arguments: argparse.Namespace) -> None:
    """Say that workers which run already choose their sandboxes themselves.

    Raises:
        ConfigurationError: one of the flags was given.
    """
    for _, flag in _flags():
        if _value(arguments, flag) is not None:
            raise ConfigurationError(
                f"{flag.name}: the workers of this Redis choose their sandboxes; set "
                f"{flag.setting} where they are started"
            )


def _flags() -> Iterator[tuple[str | None, Flag]]:
    """Every flag and the backend that it belongs to; None = all."""
    yield None, _BACKEND
    for name in dict.fromkeys([*known_backends(), os.environ.get(_BACKEND.setting)]):
        with suppress(ConfigurationError):  # said when it is used
            for flag in find_backend(name).flags if name else ():
                yield name, flag


def _chosen(arguments: argparse.Namespace) -> str:
    return arguments.sandbox or SandboxSettings().backend


def _value(arguments: argparse.Namespace, flag: Flag) -> object:
    return getattr(arguments, flag.name.removeprefix("--").replace("-", "_"))
