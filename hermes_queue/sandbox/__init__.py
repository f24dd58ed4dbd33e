"""Sandbox backends: compute turned into slots.

base.py            the contract of a backend
capacity.py        how many slots may be leased at once
context.py         a slot as envs and tools see it
creation.py        the rate of sandbox creation
predecessors.py    what dead workers of this host left at a provider
profile_names.py   which profiles a backend knows
snapshot_notes.py  which snapshot holds what
builds/            where assets are built
host/              Linux: namespaces, cgroups, seccomp, processes
local/             slots on this host
modal/             slots at Modal
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from hermes_queue import extensions
from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox.base import SandboxBackend

CONTRACT = sorted(
    part
    for part in {*vars(SandboxBackend), *SandboxBackend.__annotations__}
    if not part.startswith("_")
)
"""What a backend has to have."""


def known_backends() -> list[str]:
    """Short names of the backends in this installation, plugins included."""
    return extensions.known("backend")


def make_backend(
    name: str, *, offers: Mapping[str, Any] | None = None, **options: Any
) -> SandboxBackend:
    """The backend called `name`: a room here, `package.module:Class`, or that of a plugin.

    Args:
        name: as above.
        offers: means of the fleet, by name; those go to the class's constructor that it has a
            parameter for. See `SandboxBackend`.
        options: go to the class's constructor.

    Raises:
        ConfigurationError: see `hermes_queue.extensions.load`; or it lacks a part of the contract,
            which the message names.
    """
    factory = extensions.load("backend", name)
    backend: SandboxBackend = factory(**options, **_accepted(factory, offers or {}))
    if missing := [part for part in CONTRACT if not hasattr(backend, part)]:
        raise ConfigurationError(
            f"sandbox backend {name!r} has no {', '.join(missing)}: add what "
            "hermes_queue.sandbox.base.SandboxBackend says of it"
        )
    return backend


def _accepted(factory: Any, offers: Mapping[str, Any]) -> dict[str, Any]:
    """The offers that the constructor names, or all if it takes any keyword."""
    parameters = signature(factory).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(offers)
    return {name: offer for name, offer in offers.items() if name in parameters}
