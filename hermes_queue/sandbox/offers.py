"""Optional attributes of a backend's module: settings, producer flags, checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from pydantic_settings import BaseSettings

from hermes_queue.sandbox.fleet import BackendFactory


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of every producer that sets one setting of the worker it starts."""

    name: str
    """As typed, e.g. `--modal-image`."""
    setting: str
    """Full name of the environment variable."""
    help: str
    metavar: str
    bounds: tuple[int, int] | None = None
    """Minimum and maximum of an integer; None = any text."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A fact about this host or the provider, found by `check()`."""

    check: str
    """Name of the check, e.g. `sandbox.local`; stable."""
    message: str
    remedy: str = ""
    """Advice; empty = nothing to do."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Attributes of a backend's module; their names are in brackets."""

    make: BackendFactory
    """[BACKEND] Its class, or a function that makes it."""
    settings: type[BaseSettings] | None
    """[SETTINGS] Its section; variables with its prefix are known, and checked at every start."""
    flags: tuple[Flag, ...]
    """[FLAGS]"""
    check: Callable[[], AsyncIterator[Condition]] | None
    """[check] For `hermes-queue doctor`, instead of starting and stopping the backend. Raises the
    same as `SandboxBackend.start`."""
    check_profile: Callable[[str], None] | None
    """[check_profile] Raises SandboxRejected for a profile that a worker with these settings does
    not know, and ConfigurationError for unreadable settings."""
