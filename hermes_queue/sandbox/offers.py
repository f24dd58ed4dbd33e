"""What the module of a backend offers besides the backend: settings, producer flags, checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import ModuleType

from pydantic_settings import BaseSettings

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox.fleet import BackendFactory


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of all producers that stands for a setting of the worker which they start."""

    name: str
    """As it is typed, e.g. `--modal-image`."""
    setting: str
    """The environment variable, in full."""
    help: str
    metavar: str
    bounds: tuple[int, int] | None = None
    """Least and greatest value of an integer; None = any text."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that `check()` found out about this host or the provider."""

    check: str
    """What was looked at, e.g. `sandbox.local`; stable."""
    message: str
    remedy: str = ""
    """What to do; empty = there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Attributes of a backend's module, by the names in brackets."""

    name: str
    """Of the backend, as the setting has it."""
    make: BackendFactory
    """[BACKEND] Its class, or a function that makes it."""
    settings: type[BaseSettings] | None
    """[SETTINGS] Its section; variables of this prefix are known, and checked at every start."""
    flags: tuple[Flag, ...]
    """[FLAGS]"""
    check: Callable[[], AsyncIterator[Condition]] | None
    """[check] For `hermes-queue doctor`, in place of starting and stopping the backend. Raises what
    `SandboxBackend.start` does."""
    check_profile: Callable[[str], None] | None
    """[check_profile] Raises SandboxRejected for a profile that a worker with these settings does
    not know, and ConfigurationError for settings that cannot be read."""


def offer_of(name: str, module: ModuleType, make: BackendFactory) -> Offer:
    """What `module`, that of the backend called `name`, offers.

    Raises:
        ConfigurationError: an attribute is of another type; names it.
    """
    settings = getattr(module, "SETTINGS", None)
    if settings is not None and not (
        isinstance(settings, type) and issubclass(settings, BaseSettings)
    ):
        raise ConfigurationError(f"{module.__name__}.SETTINGS is no section of pydantic-settings")
    flags = tuple(getattr(module, "FLAGS", ()))
    if not all(isinstance(flag, Flag) for flag in flags):
        raise ConfigurationError(f"{module.__name__}.FLAGS holds something else than a Flag")
    return Offer(
        name=name,
        make=make,
        settings=settings,
        flags=flags,
        check=getattr(module, "check", None),
        check_profile=getattr(module, "check_profile", None),
    )
