"""The contract of a task environment: item, prompt, setup, verification. Nothing about queues.

An env is one module below `envs/` with a module-level `ENV`, or any object named as
`package.module:Attribute`. It is stateless: the item and the slot hold all state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, util
from pkgutil import iter_modules
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel

import envs
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext

ItemT = TypeVar("ItemT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `verify`, which either returns one or raises; there is no "unknown"."""

    score: float
    """The task's own measure, usually 0.0 or 1.0."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Optional shaping terms; never added to `score`."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """JSON-serialisable explanation: reason, outcome of each test, dropped changes, ..."""


class Environment(Protocol[ItemT]):
    """The rules of one dataset."""

    name: ClassVar[str]
    version: ClassVar[str]
    """Must change whenever the same answer could get another score."""
    tools: ClassVar[Sequence[str]]
    """Names below `hermes_queue.tools`, or `package.module:ATTRIBUTE`."""
    Item: type[ItemT]
    """Validates one dataset row. Must have a field or property `instance_id: str`."""

    def prompt(self, item: ItemT) -> list[Message]:
        """The beginning of the agent's conversation. Must not disclose the tests that grade."""
        ...

    def spec(self, item: ItemT, profile: str) -> SlotSpec:
        """The slot for this item: Python, assets, and the job's `profile`, to be passed on."""
        ...

    async def setup(self, item: ItemT, context: SlotContext) -> None:
        """Prepare the empty workspace.

        Raises:
            EnvInfraError: a clone or download failed (retried).
            EnvBug: the row does not fit its source (not retried).
        """

    async def verify(
        self, item: ItemT, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        """Measure the state in which the agent left the slot. May call `context.renew()`.

        Raises:
            SandboxError: nothing could be measured (retried, never a score).
        """
        ...

    async def oracle(self, item: ItemT, context: SlotContext) -> list[ToolCall]:
        """The gold answer as tool calls, and/or as a final message (`oracle_answer`).

        Running the calls through the tools and verifying must score 1.0 on every shipped row.
        """
        ...

    def oracle_answer(self, item: ItemT) -> str:
        """The oracle's final message."""
        ...

    def tamper(self, item: ItemT) -> Mapping[str, Sequence[ToolCall | str]]:
        """Ways to cheat the verifier, by name; each must score 0.0. May be empty.

        A string is sent as a message without tool calls, so only the last step may be a string.
        """
        ...


def known_envs() -> list[str]:
    """Short names of the envs in this installation."""
    return sorted(m.name for m in iter_modules(envs.__path__) if m.name != "base" and not m.ispkg)


@cache
def load_env(name: str) -> Environment[Any]:
    """The env called `name`: `envs.<name>`, or `package.module:Attribute`.

    Raises:
        ConfigurationError: there is no such env; the message lists the known ones.
    """
    module, _, attribute = name.partition(":") if ":" in name else (f"envs.{name}", "", "ENV")
    if ":" not in name and (
        not name.isidentifier() or name == "base" or util.find_spec(module) is None
    ):
        raise ConfigurationError(
            f"env {name!r} is unknown; known: {', '.join(known_envs())}; "
            "your own: --env package.module:Attribute"
        )
    try:
        env: Environment[Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"env {name!r} cannot be loaded: {error}") from error
    return env
