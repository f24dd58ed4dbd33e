"""Versions of trainers that the adapters were tested with, and what they need of them.

A newer version is taken as long as the types and functions that the adapter uses have the same
fields and parameters; otherwise it is refused with what changed, before a step is trained.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from hermes_queue.errors import ConfigurationError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerVersion:
    """A package that an adapter uses."""

    package: str
    """Name of its distribution."""
    version: str
    """That the tests ran with."""
    install: str = ""
    """What to install; "" = `package==version`."""
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields of types and parameters of functions that the adapter uses, by `module:name`."""

    @property
    def requirement(self) -> str:
        """What to tell pip."""
        return self.install or f"{self.package}=={self.version}"


TRAINERS: Mapping[str, TrainerVersion] = {}
"""By the name of the adapter's module."""


def check(adapter: str) -> None:
    """Make sure that an adapter fits the installed version of its trainer.

    Raises:
        ConfigurationError: it is not installed, or lacks a field or parameter that is used.
        ValueError: there is no such adapter.
    """
    if (tested := TRAINERS.get(adapter)) is None:
        raise ValueError(f"no adapter {adapter!r}; there are {', '.join(sorted(TRAINERS))}")
    try:
        installed = version(tested.package)
    except PackageNotFoundError:
        raise ConfigurationError(
            f"hermes_queue.trainers.{adapter} needs {tested.package}: "
            f"pip install '{tested.requirement}'"
        ) from None
    if changes := missing(tested):
        raise ConfigurationError(
            f"{tested.package} {installed} does not fit hermes_queue.trainers.{adapter}, which was "
            f"tested with {tested.version}: {'; '.join(changes)}. Install '{tested.requirement}'"
        )
    if installed != tested.version:
        logger.warning(
            "%s %s is installed; hermes_queue.trainers.%s was tested with %s",
            tested.package,
            installed,
            adapter,
            tested.version,
            extra={"action": "trainer_untested"},
        )


def missing(tested: TrainerVersion) -> list[str]:
    """What the adapter uses and the installed package has not, one sentence each."""
    changes = []
    for path, names in tested.uses.items():
        module, _, name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            changes.append(f"{path} cannot be imported ({error})")
            continue
        has = _names(found)
        lacks = [each for each in names if each not in has]
        if lacks:
            changes.append(f"{name} has no {', '.join(lacks)}; it has {', '.join(sorted(has))}")
    return changes


def _names(found: object) -> frozenset[str]:
    """Fields and methods of a type, or parameters of a function."""
    if not isinstance(found, type):
        return frozenset(inspect.signature(found).parameters) if callable(found) else frozenset()
    names = set[str]()
    for base in found.__mro__[:-1]:
        names |= {*vars(base), *vars(base).get("__annotations__", ())}
    return frozenset(name for name in names if not name.startswith("_"))
