"""Options for the sandboxes of a run whose worker is started by the producer.

Workers that run already choose their sandboxes by their own settings.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from hermes_queue import extensions
from hermes_queue.errors import ConfigurationError, SandboxRejected
from hermes_queue.sandbox import find_backend
from hermes_queue.sandbox.offers import Flag
from hermes_queue.settings import PREFIX, SandboxSettings
from producers.run.flags import Options, at_least

_BACKEND = Flag(
    "--sandbox",
    f"{PREFIX}SANDBOX_BACKEND",
    "sandbox backend: local (default), docker, nomad, modal, a plugin's name, or "
    "package.module:BACKEND",
    metavar="NAME",
)


def chosen_backend(argv: Sequence[str] | None) -> str | None:
    """The value of `--sandbox` in a command line that cannot be parsed without its flags."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument(_BACKEND.name, nargs="?")
    return first.parse_known_args(argv)[0].sandbox or None


@dataclass(frozen=True)
class SandboxOptions(Options):
    """Options that set a worker's settings; the backends declare most of them."""

    title: ClassVar[str] = "sandboxes, if everything runs on this machine"
    chosen: tuple[tuple[str | None, Flag, object], ...] = ()
    """The flags that were given: (backend that the flag belongs to, or None for all; flag;
    value)."""

    @classmethod
    def add(cls, parser: argparse.ArgumentParser, **defaults: Any) -> None:
        """See `Options`.

        Raises:
            ConfigurationError: `--sandbox` names a backend that cannot be loaded, or one of its
                flags is taken.
        """
        group = parser.add_argument_group(cls.title)
        for owner, flag in _flags(defaults.get("sandbox")):
            kind = at_least(*flag.bounds) if flag.bounds else str
            try:
                group.add_argument(flag.name, metavar=flag.metavar, help=flag.help, type=kind)
            except argparse.ArgumentError as error:
                raise ConfigurationError(f"sandbox backend {owner!r}: FLAGS: {error}") from error

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        """See `Options`."""
        given = vars(namespace)
        values = (
            (owner, flag, given[flag.name.removeprefix("--").replace("-", "_")])
            for owner, flag in _flags(namespace.sandbox)
        )
        return cls(tuple(each for each in values if each[2] is not None))

    def worker_settings(self) -> dict[str, str]:
        """The environment variables that the options set.

        Raises:
            ConfigurationError: an option belongs to another backend than the chosen one.
        """
        for owner, flag, _ in self.chosen:
            if owner not in (None, self.backend):
                raise ConfigurationError(f"{flag.name} needs --sandbox {owner}")
        return {flag.setting: str(value) for _, flag, value in self.chosen}

    def check_profile(self, profile: str) -> None:
        """Check the profile of a run whose worker starts here, before anything starts.

        Raises:
            ConfigurationError: the worker would not know the profile.
        """
        check = find_backend(self.backend).check_profile
        try:
            if check is not None:
                check(profile)
        except SandboxRejected as error:
            raise ConfigurationError(f"--profile: {error}") from error

    def refuse(self) -> None:
        """Raise ConfigurationError for a flag: workers that run already have their own settings."""
        for _, flag, _ in self.chosen:
            raise ConfigurationError(
                f"{flag.name}: the workers of this Redis choose their sandboxes; set "
                f"{flag.setting} where they are started"
            )

    @property
    def named(self) -> str | None:
        """The backend that `--sandbox` names."""
        return next((str(value) for _, flag, value in self.chosen if flag is _BACKEND), None)

    @property
    def backend(self) -> str:
        """The backend of a worker that is started here."""
        return self.named or SandboxSettings().backend


def _flags(named: str | None) -> Iterator[tuple[str | None, Flag]]:
    """Flags with their backend: of all bundled backends, and of the named or configured one."""
    yield None, _BACKEND
    own = extensions.own("backend")
    for name in own:
        yield from ((name, flag) for flag in find_backend(name).flags)
    foreign = os.environ.get(_BACKEND.setting) if named in (None, *own) else named
    if foreign and foreign not in own:
        try:
            yield from ((foreign, flag) for flag in find_backend(foreign).flags)
        except ConfigurationError:
            if named == foreign:  # the setting is reported when the backend is used
                raise
