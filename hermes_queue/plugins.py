"""Plugins: what an optional feature declares, and which plugins are installed.

A plugin is a `Plugin` object that an entry point of the group `hermes_queue.plugins` leads to.
Ours are the folders of `hermes_plugins`; plugins of other distributions are found in the same way.
What is not optional is declared by `hermes_queue.core.CORE`, an object of the same type.

A declaration names what it adds by `package.module:ATTRIBUTE` and imports none of it, so that lists
of names, `--help` and the checks of settings cost one short import per plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hermes_queue.errors import ConfigurationError, foreign_error

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "hermes_queue.plugins"
"""The entry point group of plugins."""
_OURS = "hermes-queue"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of extension."""

    name: str
    """Name in the singular, with an underscore: `token_server`."""
    attribute: str
    """The usual name of the object in its module."""
    contract: str
    """`module:Class` of the class or protocol that the object must satisfy."""

    @property
    def title(self) -> str:
        """Name of the kind in messages."""
        return self.name.replace("_", " ")


KINDS = {
    kind.name: kind
    for kind in (
        Kind("env", "ENV", "envs.base:Environment"),
        Kind("tool", "TOOL", "hermes_queue.tools.base:Tool"),
        Kind("agent", "AGENT", "collections.abc:Callable"),
        Kind("sink", "FORMAT", "hermes_queue.sinks.base:Format"),
        Kind("backend", "BACKEND", "collections.abc:Callable"),
        Kind("producer", "PRODUCER", "producers.base:Producer"),
        Kind("parser", "PARSER", "hermes_queue.agent.parsers.base:ToolCallParser"),
        Kind("token_server", "SERVER", "hermes_queue.agent.tokens.servers.base:Server"),
    )
}


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `hermes-queue`."""

    target: str
    """The click command, `package.module:ATTRIBUTE`."""
    purpose: str
    """One sentence for lists of commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What a feature adds. Every target is written `package.module:ATTRIBUTE`.

    Raises:
        ValueError: a kind of extension is unknown, or a target is not of that form.
    """

    name: str
    purpose: str
    """One sentence."""
    code_lines: int = 0
    """Budget of code lines, without blank lines, comments and docstrings; 0 = none is kept."""
    needs: tuple[str, ...] = ()
    """Names of other plugins whose modules it imports."""
    extensions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Target of each extension by its kind, a key of `KINDS`, and its name."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """By name; `tasks validate` is a command of the group `tasks`, and `export NAME` stands in for
    `export --format NAME`."""
    settings: tuple[str, ...] = ()
    """Targets of its settings sections, classes of pydantic-settings."""
    keys: tuple[str, ...] = ()
    """Targets of tuples of `hermes_queue.keyspace.keys.Key`."""
    after: tuple[str, ...] = ()
    """Targets of hooks that see a verdict before it is final: `workers.hooks.OpenAfter`."""
    run_hints: tuple[str, ...] = ()
    """Targets of functions that say in one line how to go on after a run: they get the path of the
    file with its records, None = they are in the deployment."""
    image_slots: Mapping[str, str] = field(default_factory=dict)
    """Target of what makes a backend of the core whose slots can have images, in its place, by the
    backend's name; its module may have the attributes of `hermes_queue.sandbox.offers.Offer`."""
    exported: tuple[str, ...] = ()
    """Targets of functions that get a `Ledger` at each scrape of `hermes-queue exporter` and yield
    each of their metrics (`hermes_queue.telemetry.metrics.Metric`) with its values, if any."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.extensions) - KINDS.keys()):
            raise ValueError(f"extensions: {unknown[0]!r} is no kind; kinds: {', '.join(KINDS)}")
        for target in (
            *(target for named in self.extensions.values() for target in named.values()),
            *(command.target for command in self.commands.values()),
            *self.image_slots.values(),
            *self.settings,
            *self.keys,
            *self.after,
            *self.run_hints,
            *self.exported,
        ):
            if not re.fullmatch(r"[\w.]+:[\w.]+", target):
                raise ValueError(f"{target!r} is not written package.module:ATTRIBUTE")


@dataclass(frozen=True, slots=True)
class Installed:
    """An entry point of our group."""

    origin: str
    """Its distribution and version, such as `my-extensions 1.0`."""
    is_ours: bool
    """Whether it is part of the distribution hermes-queue."""
    target: str
    plugin: Plugin | None
    """None if the declaration cannot be used."""
    error: str = ""
    """Why it cannot be used."""


@cache
def installed() -> tuple[Installed, ...]:
    """All plugins of this Python installation, ours first, each sorted by name.

    Distributions installed later are found by the next process.
    """
    from importlib.metadata import entry_points  # as slow as all other imports of `hermes-queue`

    found = (_read(point) for point in entry_points(group=GROUP))
    return tuple(sorted(found, key=lambda each: (not each.is_ours, each.target)))


def load_target(target: str, label: str = "") -> Any:
    """Import what `package.module:ATTRIBUTE` names.

    Raises:
        ConfigurationError: it cannot be imported, whatever the module raises; the message calls it
            `label`, by default the target.
    """
    module, _, attribute = target.partition(":")
    try:
        return attrgetter(attribute)(import_module(module))
    except Exception as error:  # a foreign module may raise anything at its import
        why = foreign_error(error)
        raise ConfigurationError(f"{label or target} cannot be loaded: {why}") from error


@cache
def _described(dist: Distribution | None) -> tuple[str, bool]:
    """Name and version of a distribution, and whether it is ours: its metadata are a mail."""
    metadata = dist.metadata if dist else {"Name": "an unknown distribution", "Version": ""}
    name = str(metadata["Name"])
    is_ours = re.sub(r"[-_.]+", "-", name).lower() == _OURS
    return f"{name} {metadata['Version']}".strip(), is_ours


def _read(point: EntryPoint) -> Installed:
    origin, is_ours = _described(point.dist)
    plugin, error = None, ""
    try:
        plugin = load_target(f"{point.module}:{point.attr or 'PLUGIN'}")
    except ConfigurationError as failure:
        error = str(failure)
    if not error and not isinstance(plugin, Plugin):
        plugin, error = None, f"{point.value} is a {type(plugin).__name__}, not a Plugin"
    return Installed(origin, is_ours, point.value, plugin, error)
