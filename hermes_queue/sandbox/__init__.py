"""Sandbox backends, which provide slots.

archives.py        trees of files to and from a slot with an image
base.py            the contract of a backend
capacity.py        the number of slots that may be leased at once
context.py         a slot for envs and tools
files.py           files of a slot, read and written with bash
fleet.py           state that a backend shares with the deployment's workers
image_slots.py     slots with an image of their own
offers.py          optional attributes of a backend's module
profiles.py        for backends with one kind of slot
services.py        containers beside a slot
snapshots.py       copies of slots' files, which some backends keep
slot_backend.py    the common part of backends that can run a program in a slot
builds/            where assets are built
commands/          commands through a provider's streams
host/              Linux: namespaces, cgroups, seccomp, processes
listening/         ports inside slots that the worker serves
local/             slots on this host
modal/             slots at Modal
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from pydantic_settings import BaseSettings

from hermes_queue import extensions
from hermes_queue.core import declared
from hermes_queue.errors import ConfigurationError, HermesQueueError, TrajectoryFailure
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import Fleet
from hermes_queue.sandbox.offers import Flag, Offer

CONTRACT = sorted(
    part
    for part in {*vars(SandboxBackend), *SandboxBackend.__annotations__}
    if not part.startswith("_")
)
"""Methods and attributes that a backend must have."""


def known_backends() -> list[str]:
    """Short names of the backends in this installation, plugins included."""
    return extensions.known("backend")


def find_backend(name: str) -> Offer:
    """The backend called `name`: a room here, `package.module:Class`, or that of a plugin.

    Raises:
        ConfigurationError: see `hermes_queue.extensions.load`; or an optional attribute of its
            module has the wrong type.
    """
    module, make = extensions.load_with_module("backend", name)
    attributes = vars(module)
    if with_images := next((t for each in declared() if (t := each.image_slots.get(name))), None):
        module, make = extensions.load_with_module("backend", with_images)
        attributes = {**attributes, **vars(module)}
    settings, flags, check, check_profile = (
        attributes.get(attribute) for attribute in ("SETTINGS", "FLAGS", "check", "check_profile")
    )
    is_class = isinstance(settings, type) and issubclass(settings, BaseSettings)
    if settings is not None and not is_class:
        raise ConfigurationError(
            f"sandbox backend {name!r}: SETTINGS is not a pydantic-settings class"
        )
    if not all(isinstance(flag, Flag) for flag in flags or ()):
        raise ConfigurationError(f"sandbox backend {name!r}: FLAGS may only contain Flag objects")
    return Offer(make, settings, tuple(flags or ()), check, check_profile)


def make_backend(
    name: str,
    *,
    slots: int | None = None,
    labels: Mapping[str, str] | None = None,
    fleet: Fleet | None = None,
) -> SandboxBackend:
    """Make the backend called `name` (see `find_backend`); see `BackendFactory`.

    Raises:
        ConfigurationError: the backend is unknown, its constructor takes other arguments or raises
            (the message has file and line), or it lacks a part of the contract, which is named.
    """
    make = find_backend(name).make
    try:
        backend = make(slots=slots, labels=labels, fleet=fleet)
    except (HermesQueueError, TrajectoryFailure):
        raise
    except Exception as error:  # foreign code may raise anything
        *inside, raised = traceback.extract_tb(error.__traceback__)
        why = f"{type(error).__name__}: {error} ({raised.filename}:{raised.lineno})"
        if isinstance(error, TypeError) and not inside:  # our call was refused
            why = (
                f"{error}; its constructor takes the keywords slots, labels and fleet: "
                "hermes_queue.sandbox.fleet.BackendFactory"
            )
        raise ConfigurationError(f"sandbox backend {name!r} cannot be made: {why}") from error
    if missing := [part for part in CONTRACT if not hasattr(backend, part)]:
        raise ConfigurationError(
            f"sandbox backend {name!r} has no {', '.join(missing)}: see the "
            "contract, hermes_queue.sandbox.base.SandboxBackend"
        )
    return backend
