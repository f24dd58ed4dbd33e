"""Extensions by name: envs, tools, agents, sinks, backends, producers, parsers, token servers.

All eight kinds are found in the same way (docs/extensions.md): as `package.module:ATTRIBUTE`, or by
the name that the core or a plugin declares (`hermes_queue.plugins`). A plugin cannot replace what
the core declares.

Plugins are read for a name that the core does not declare, and for lists of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hermes_queue.core import CORE
from hermes_queue.errors import ConfigurationError
from hermes_queue.plugins import GROUP, KINDS, Installed, Kind, installed, load_target

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place:
    """Location of an extension, before anything is imported."""

    kind: Kind
    name: str
    target: str
    plugin: str = ""
    """The plugin's distribution and version; "" for what the core or the name itself says."""

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    def load(self) -> tuple[ModuleType, Any]:
        """Import it: its module and object. Raises ConfigurationError if that does not work."""
        label = f"{self.kind.title} {self.name!r}"
        if self.plugin:
            label += f" (plugin {self.plugin}, {self.target})"
        found = load_target(self.target, label)
        if problem := violation(self.kind.contract, found):
            raise ConfigurationError(f"{label} {problem}: see {self.kind.contract}")
        return import_module(self.module), found


@dataclass(frozen=True, slots=True)
class Listed:
    """One extension of this installation, as listed for people."""

    kind: str
    name: str
    origin: str
    """Its distribution and version; for ours the name of the plugin."""
    target: str
    """Its `module:ATTRIBUTE`."""
    error: str = ""
    """Why it cannot be used; "" for ours, which are listed without an import."""


def load(kind: str, name: str, *, also: Iterable[str] = ()) -> Any:
    """Load the extension called `name`, see the module's docstring, of one of `KINDS`.

    Raises:
        ConfigurationError: the name is unknown (the message lists the known ones, and `also`); two
            plugins have it; it cannot be imported or does not satisfy its contract.
    """
    return load_with_module(kind, name, also=also)[1]


def load_with_module(kind: str, name: str, *, also: Iterable[str] = ()) -> tuple[ModuleType, Any]:
    """As `load`, with the extension's module, which may have further attributes for its kind."""
    if ":" in name:
        return _place(KINDS[kind], name, also).load()
    return _load_named(kind, name, tuple(also))


@cache
def _load_named(kind: str, name: str, also: tuple[str, ...]) -> tuple[ModuleType, Any]:
    # A trajectory loads several. An exception is not kept: the next call tries again.
    return _place(KINDS[kind], name, also).load()


def module_of(kind: str, name: str) -> str | None:
    """The module that `load` would import, or None for an unknown name. Imports nothing of it."""
    try:
        return _place(KINDS[kind], name).module
    except ConfigurationError:
        return None


@cache
def own(kind: str) -> tuple[str, ...]:
    """Names that this distribution declares, in the core and in its plugins, sorted."""
    names = set(CORE.extensions.get(kind, ()))
    for each in installed():
        if each.is_ours and each.plugin:
            names.update(each.plugin.extensions.get(kind, ()))
    return tuple(sorted(names))


def known(kind: str) -> list[str]:
    """All names that need no module path, sorted. Imports declarations only."""
    return sorted({*CORE.extensions.get(kind, ()), *(name for name, *_ in _of_plugins(kind))})


def listed() -> Iterator[Listed]:
    """Every named extension, with the errors of other distributions' plugins, all imported."""
    for kind in KINDS.values():
        for name, target in sorted(CORE.extensions.get(kind.name, {}).items()):
            yield Listed(kind.name, name, CORE.name, target)
        for name, target, by in sorted(_of_plugins(kind.name), key=lambda each: each[0]):
            if by.is_ours and by.plugin:
                yield Listed(kind.name, name, by.plugin.name, target)
                continue
            error = ""
            if name in own(kind.name):
                error = f"hermes-queue has a {kind.title} of this name, which is used instead"
            else:
                try:
                    load(kind.name, name)
                except ConfigurationError as failure:
                    error = str(failure)
            yield Listed(kind.name, name, by.origin, target, error)
    for by in installed():
        if by.error:
            yield Listed("plugin", "", by.origin, by.target, f"plugin {by.origin}: {by.error}")


def _of_plugins(kind: str) -> Iterator[tuple[str, str, Installed]]:
    """Name, target and plugin of each extension that a plugin declares."""
    for each in installed():
        if each.plugin:
            for name, target in each.plugin.extensions.get(kind, {}).items():
                yield name, target, each


def _place(kind: Kind, name: str, also: Iterable[str] = ()) -> _Place:
    if ":" in name:
        return _Place(kind, name, name)
    if target := CORE.extensions.get(kind.name, {}).get(name):
        return _Place(kind, name, target)
    found = [(target, by) for each, target, by in _of_plugins(kind.name) if each == name]
    ours = [each for each in found if each[1].is_ours]
    found = ours or found
    if len(found) > 1:
        both = " and ".join(f"{by.origin} ({target})" for target, by in found)
        raise ConfigurationError(
            f"{kind.title} {name!r} is declared by {both}: uninstall one of them, or use "
            f"package.module:{kind.attribute}"
        )
    if not found:
        broken = "".join(f"; plugin {by.origin}: {by.error}" for by in installed() if by.error)
        raise ConfigurationError(
            f"{kind.title} {name!r} is unknown; known: "
            f"{', '.join(sorted({*known(kind.name), *also}))}; your own: "
            f"package.module:{kind.attribute}, or a plugin, an entry point in the group {GROUP} "
            f"(docs/extensions.md){broken}"
        )
    [(target, by)] = found
    return _Place(kind, name, target, "" if by.is_ours else by.origin)


def violation(contract: str, found: object) -> str:
    """How `found` violates the contract; "" if it does not."""
    expected, demanded = _contract(contract)
    if demanded is not None:
        missing = [part for part in demanded if not hasattr(found, part)]
        return f"has no {', '.join(missing)}" if missing else ""
    return (
        ""
        if isinstance(found, expected)
        else f"is a {type(found).__name__}, not a {expected.__name__}"
    )


@cache
def _contract(contract: str) -> tuple[Any, tuple[str, ...] | None]:
    """The contract's type, and the names that it demands if it is a protocol, else None."""
    module, _, name = contract.partition(":")
    expected = getattr(import_module(module), name)
    if not getattr(expected, "_is_protocol", False):
        return expected, None
    parts = {*vars(expected), *expected.__annotations__}
    return expected, tuple(sorted(part for part in parts if not part.startswith("_")))


def offers(value: object, protocol: Callable[..., T]) -> TypeIs[T]:
    """Whether the class of `value` has all methods of a runtime-checkable protocol.

    `isinstance` also looks for attributes of the object itself, anew with each call, which takes
    Python 3.11 25 µs. This asks the class alone, and a class is asked once.

    Raises:
        TypeError: the protocol has members that are no methods.
    """
    return issubclass(type(value), cast(type, protocol))
