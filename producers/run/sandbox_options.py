"""Options for the sandboxes of a run whose worker is started by the producer.

Workers that run already choose their sandboxes by their own settings.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from hermes_queue import extensions
from hermes_queue.errors import ConfigurationError, SandboxRejected
from hermes_queue.sandbox import find_backend
from hermes_queue.sandbox.offers import Flag
from hermes_queue.settings import PREFIX, SandboxSettings
from producers.run.flags import Options
from producers.run.numbers import at_least

_BACKEND = Flag(
    "--sandbox",
    f"{PREFIX}SANDBOX_BACKEND",
    "sandbox backend: local (default), modal, a plugin's name, or package.module:BACKEND",
    metavar="NAME",
)


@dataclass(frozen=True)
class SandboxOptions(Options):
    """Options that set a worker's settings; the backends declare most of them."""

    title: ClassVar[str] = "sandboxes, if everything runs on this machine"
    chosen: tuple[tuple[str | None, Flag, object], ...] = ()
    """The flags that were given: (backend that the flag belongs to, or None for all; flag;
    value)."""

    @classmethod
    def add(cls, parser: argparse.ArgumentParser, **defaults: Any) -> None:
        """See `Options`."""
        group = parser.add_argument_group(cls.title)
        for _, flag in _flags():
            kind = at_least(*flag.bounds) if flag.bounds else str
            group.add_argument(flag.name, metavar=flag.metavar, help=flag.help, type=kind)

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        """See `Options`."""
        values = ((owner, flag, _value(namespace, flag)) for owner, flag in _flags())
        return cls(tuple(each for each in values if each[2] is not None))

    def worker_settings(self) -> dict[str, str]:
        """The environment variables that the options set.

        Raises:
            ConfigurationError: an option belongs to another backend than the chosen one.
        """
        for owner, flag, _ in self.chosen:
            if owner not in (None, self._backend):
                raise ConfigurationError(f"{flag.name} needs --sandbox {owner}")
        return {flag.setting: str(value) for _, flag, value in self.chosen}

    def check_profile(self, profile: str) -> None:
        """Check the profile of a run whose worker starts here, before anything starts.

        Raises:
            ConfigurationError: the worker would not know the profile; the message lists known
                ones.
        """
        check = find_backend(self._backend).check_profile
        try:
            if check is not None:
                check(profile)
        except SandboxRejected as error:
            raise ConfigurationError(f"--profile: {error}") from error

    def refuse(self) -> None:
        """Refuse all flags, because workers that run already choose their sandboxes themselves.

        Raises:
            ConfigurationError: one of the flags was given.
        """
        for _, flag, _ in self.chosen:
            raise ConfigurationError(
                f"{flag.name}: the workers of this Redis choose their sandboxes; set "
                f"{flag.setting} where they are started"
            )

    @property
    def _backend(self) -> str:
        chosen = [str(value) for _, flag, value in self.chosen if flag is _BACKEND]
        return chosen[0] if chosen else SandboxSettings().backend


def _flags() -> Iterator[tuple[str | None, Flag]]:
    """Flags with their backend: of all bundled backends and of the configured one."""
    yield None, _BACKEND
    for name in dict.fromkeys([*extensions.own("backend"), os.environ.get(_BACKEND.setting, "")]):
        with suppress(ConfigurationError):  # reported when the backend is used
            for flag in find_backend(name).flags if name else ():
                yield name, flag


def _value(namespace: argparse.Namespace, flag: Flag) -> object:
    return getattr(namespace, flag.name.removeprefix("--").replace("-", "_"))
