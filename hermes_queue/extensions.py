"""Extensions by name: envs, tools, agents, sinks, backends, producers, parsers, token servers.

All eight kinds are found in the same way (docs/extensions.md): as `package.module:ATTRIBUTE`; as a
module in the kind's folder of this project that has the kind's attribute in upper case, as
`hermes_queue/tools/terminal.py` has `TOOL`; or as an entry point in the kind's group
(`hermes_queue.tools`) of an installed distribution, a plugin. It cannot replace one of ours.

Entry points are read for a name that is not bundled, and for lists of names. Distributions
installed later are found by the next process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hermes_queue.errors import ConfigurationError, foreign_error

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from typing_extensions import TypeIs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of extension."""

    name: str
    """Name in the singular, with an underscore: `token_server`."""
    attribute: str
    """Name of the object in its module."""
    folder: str
    """Our package whose modules have the attribute."""
    contract: str
    """`module:Class` of the class or protocol that the object must satisfy."""

    @property
    def title(self) -> str:
        """Name of the kind in messages."""
        return self.name.replace("_", " ")

    @property
    def group(self) -> str:
        """The entry point group of plugins."""
        return f"hermes_queue.{self.name}s"


KINDS = {
    kind.name: kind
    for kind in (
        Kind("env", "ENV", "envs", "envs.base:Environment"),
        Kind("tool", "TOOL", "hermes_queue.tools", "hermes_queue.tools.base:Tool"),
        Kind("agent", "AGENT", "hermes_queue.agent.kinds", "collections.abc:Callable"),
        Kind("sink", "FORMAT", "hermes_queue.sinks.datasets", "hermes_queue.sinks.base:Format"),
        Kind("backend", "BACKEND", "hermes_queue.sandbox", "collections.abc:Callable"),
        Kind("producer", "PRODUCER", "producers", "producers.base:Producer"),
        Kind(
            "parser",
            "PARSER",
            "hermes_queue.agent.parsers",
            "hermes_queue.agent.parsers.base:ToolCallParser",
        ),
        Kind(
            "token_server",
            "SERVER",
            "hermes_queue.agent.tokens.servers",
            "hermes_queue.agent.tokens.servers.base:Server",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Location of an extension, before anything is imported."""

    kind: Kind
    name: str
    module: str
    attribute: str
    plugin: str = ""
    """The plugin's distribution and version; "" for a bundled extension."""

    def load(self) -> tuple[ModuleType, Any]:
        """Import it: its module and object. Raises ConfigurationError if that does not work."""
        label = f"{self.kind.title} {self.name!r}"
        if self.plugin:
            label += f" (plugin {self.plugin}, {self.module}:{self.attribute})"
        try:
            module = import_module(self.module)
            found = attrgetter(self.attribute)(module)
        except Exception as error:  # a foreign module may raise anything at its import
            raise ConfigurationError(f"{label} cannot be loaded: {foreign_error(error)}") from error
        if problem := violation(self.kind.contract, found):
            raise ConfigurationError(f"{label} {problem}: see {self.kind.contract}")
        return module, found


@dataclass(frozen=True, slots=True)
class Listed:
    """One extension of this installation, as listed for people."""

    kind: str
    name: str
    origin: str
    """Its distribution and version."""
    target: str
    """Its `module:ATTRIBUTE`."""
    error: str = ""
    """Why it cannot be used; "" for bundled ones, which are listed without an import."""


def load(kind: str, name: str, *, also: Iterable[str] = ()) -> Any:
    """Load the extension called `name`, see the module's docstring, of one of `KINDS`.

    Raises:
        ConfigurationError: the name is unknown (the message lists the known ones, and `also`); two
            plugins have it; it cannot be imported or does not satisfy its contract.
    """
    return load_with_module(kind, name, also=also)[1]


def load_with_module(kind: str, name: str, *, also: Iterable[str] = ()) -> tuple[ModuleType, Any]:
    """As `load`, with the extension's module, which may have further attributes for its kind."""
    if name in own(kind):
        return _load_own(kind, name)
    return _place(KINDS[kind], name, also).load()


@cache
def _load_own(kind: str, name: str) -> tuple[ModuleType, Any]:
    # A trajectory loads several. An exception is not kept: the next call tries again.
    return _place(KINDS[kind], name).load()


def module_of(kind: str, name: str) -> str | None:
    """The module that `load` would import, or None for an unknown name. Imports nothing."""
    try:
        return _place(KINDS[kind], name).module
    except ConfigurationError:
        return None


@cache
def own(kind: str) -> tuple[str, ...]:
    """Names of the bundled extensions, sorted; found in their sources, without an import."""
    given = KINDS[kind]
    pattern = re.compile(rf"^{given.attribute}\b[^=\n]*=", re.MULTILINE)
    names = []
    for file in [*_folder(given).glob("*.py"), *_folder(given).glob("*/__init__.py")]:
        if pattern.search(file.read_text(encoding="utf-8")):
            names.append(file.stem if file.name != "__init__.py" else file.parent.name)
    return tuple(sorted(names))


def known(kind: str) -> list[str]:
    """All names that need no module path, sorted. Imports nothing."""
    return sorted({*own(kind), *(point.name for point in _plugins(KINDS[kind].group))})


def listed() -> Iterator[Listed]:
    """Every named extension, with the errors of plugins, which are all imported."""
    for kind in KINDS.values():
        for name in own(kind.name):
            target = f"{kind.folder}.{name}:{kind.attribute}"
            yield Listed(kind.name, name, "hermes-queue", target)
        for point in sorted(_plugins(kind.group)):
            error = ""
            if point.name in own(kind.name):
                error = f"hermes-queue has a {kind.title} of this name, which is used instead"
            else:
                try:
                    load(kind.name, point.name)
                except ConfigurationError as failure:
                    error = str(failure)
            yield Listed(kind.name, point.name, _plugin(point), point.value, error)


def _place(kind: Kind, name: str, also: Iterable[str] = ()) -> _Place:
    if ":" in name:
        module, _, attribute = name.partition(":")
        return _Place(kind, name, module, attribute)
    if name in own(kind.name):
        return _Place(kind, name, f"{kind.folder}.{name}", kind.attribute)
    points = [point for point in _plugins(kind.group) if point.name == name]
    if len(points) > 1:
        both = " and ".join(f"{_plugin(point)} ({point.value})" for point in points)
        raise ConfigurationError(
            f"{kind.title} {name!r} is registered by {both}: uninstall one of them, or use "
            f"package.module:{kind.attribute}"
        )
    if not points:
        raise ConfigurationError(
            f"{kind.title} {name!r} is unknown; known: "
            f"{', '.join(sorted({*known(kind.name), *also}))}; your own: "
            f"package.module:{kind.attribute}, or an entry point in the group {kind.group} "
            "(docs/extensions.md)"
        )
    point = points[0]
    return _Place(kind, name, point.module, point.attr or kind.attribute, _plugin(point))


def _folder(kind: Kind) -> Path:
    # Located in the file system, because importing `hermes_queue.agent` takes a second.
    top, *below = kind.folder.split(".")
    return Path(str(import_module(top).__file__)).parent.joinpath(*below)


def _plugins(group: str) -> list[EntryPoint]:
    return [point for point in _entry_points() if point.group == group]


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # as slow as all other imports of `hermes-queue`

    every = entry_points()
    return tuple(chain.from_iterable(every.select(group=kind.group) for kind in KINDS.values()))


def _plugin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "of an unknown distribution"


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
