"""Sandbox backends: compute turned into slots.

base.py            the contract of a backend
capacity.py        how many slots may be leased at once
context.py         a slot as envs and tools see it
files.py           a slot's files, by way of bash
fleet.py           what the workers of a deployment share
offers.py          what a backend's module offers besides
profiles.py        for backends whose slots are all alike
builds/            where assets are built
host/              Linux: namespaces, cgroups, seccomp, processes
local/             slots on this host
modal/             slots at Modal
selfcheck/         the checks that every backend passes
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, util
from pathlib import Path

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.offers import Offer, offer_of

CONTRACT = sorted(
    part
    for part in {*vars(SandboxBackend), *SandboxBackend.__annotations__}
    if not part.startswith("_")
)
"""What a backend has to have."""


def known_backends() -> list[str]:
    """Short names of the backends in this installation: folders here with a `BACKEND`."""
    # Read off the sources: importing a backend takes longer than printing a producer's help.
    sources = Path(__file__).parent.glob("*/__init__.py")
    return sorted(
        source.parent.name for source in sources if "\nBACKEND: " in source.read_text("utf-8")
    )


def find_backend(name: str) -> Offer:
    """The backend called `name`: a module in this package, or `package.module:Class`.

    Raises:
        ConfigurationError: there is no such backend; the message lists the known ones.
    """
    module, _, attribute = name.partition(":") if ":" in name else (f"{__name__}.{name}", "", "")
    if not attribute and (not name.isidentifier() or util.find_spec(module) is None):
        raise _unknown(name)
    try:
        loaded = import_module(module)
        make = getattr(loaded, attribute) if attribute else getattr(loaded, "BACKEND", None)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"sandbox backend {name!r} cannot be loaded: {error}") from error
    if make is None:
        raise _unknown(name)
    return offer_of(name, loaded, make)


def make_backend(
    name: str,
    *,
    slots: int | None = None,
    labels: Mapping[str, str] | None = None,
    fleet: Fleet | None = None,
) -> SandboxBackend:
    """Make the backend called `name`, as `find_backend` has it; see `BackendFactory`.

    Raises:
        ConfigurationError: there is no such backend, its constructor takes other arguments, or it
            lacks a part of the contract; the message names what is missing.
    """
    make = find_backend(name).make
    try:
        backend = make(slots=slots, labels=labels, fleet=fleet)
    except TypeError as error:
        raise ConfigurationError(
            f"sandbox backend {name!r} cannot be made: {error}; its constructor takes the keywords "
            "slots, labels and fleet: hermes_queue.sandbox.fleet.BackendFactory"
        ) from error
    if missing := [part for part in CONTRACT if not hasattr(backend, part)]:
        raise ConfigurationError(
            f"sandbox backend {name!r} has no {', '.join(missing)}: add what "
            "hermes_queue.sandbox.base.SandboxBackend says of it"
        )
    return backend


def _unknown(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"sandbox backend {name!r} is unknown; known: {', '.join(known_backends())}; "
        "your own: HERMES_QUEUE_SANDBOX_BACKEND=package.module:Class"
    )
