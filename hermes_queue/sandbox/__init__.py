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
from importlib import import_module, util
from inspect import Parameter, signature
from pkgutil import iter_modules
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox.base import SandboxBackend

CONTRACT = sorted(
    part
    for part in {*vars(SandboxBackend), *SandboxBackend.__annotations__}
    if not part.startswith("_")
)
"""What a backend has to have."""


def known_backends() -> list[str]:
    """Short names of the backends in this installation: modules here with a `BACKEND`."""
    found = []
    for module in iter_modules(__path__):
        try:
            if hasattr(import_module(f"{__name__}.{module.name}"), "BACKEND"):
                found.append(module.name)
        except ImportError:
            continue
    return sorted(found)


def make_backend(
    name: str, *, offers: Mapping[str, Any] | None = None, **options: Any
) -> SandboxBackend:
    """The backend called `name`: a module in this package, or `package.module:Class`.

    Args:
        name: as above.
        offers: means of the fleet, by name; those go to the class's constructor that it has a
            parameter for. See `SandboxBackend`.
        options: go to the class's constructor.

    Raises:
        ConfigurationError: there is no such backend; the message lists the known ones. Or it
            lacks a part of the contract, which the message names.
    """
    module, _, attribute = name.partition(":") if ":" in name else (f"{__name__}.{name}", "", "")
    if not attribute and (not name.isidentifier() or util.find_spec(module) is None):
        raise _unknown(name)
    try:
        loaded = import_module(module)
        factory = getattr(loaded, attribute) if attribute else getattr(loaded, "BACKEND", None)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"sandbox backend {name!r} cannot be loaded: {error}") from error
    if factory is None:
        raise _unknown(name)
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


def _unknown(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"sandbox backend {name!r} is unknown; known: {', '.join(known_backends())}; "
        "your own: HERMES_QUEUE_SANDBOX_BACKEND=package.module:Class"
    )
