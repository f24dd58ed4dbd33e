"""Agents by name: `kind` of an `AgentSpec` to the chat client that acts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module

from hermes_queue import extensions
from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.models import AgentSpec, ToolCall
from hermes_queue.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class AgentScript:
    """What agents are given of the trajectory they act in, and scripted ones of its item."""

    oracle: Callable[[], Awaitable[tuple[Sequence[ToolCall], str]]]
    """The gold tool calls and the gold final message; called by the oracle only."""
    tamper: Mapping[str, Sequence[ToolCall | str]] = field(default_factory=dict)
    """Ways to cheat by name; a text is sent as a message without tool calls."""
    sample_index: int = 0
    instance_id: str = ""
    trajectory_id: str = ""
    """Sent to the endpoint, so that a router can keep a trajectory's turns together."""
    group_id: str = ""
    """Of several endpoints the samples of a group use the same one."""
    endpoint_failures: int = 0
    """Earlier attempts that an endpoint failed for good; each moves on to another one."""
    policy_version: str | None = None
    """The one that the job wants."""
    limiter: Limiter = field(default_factory=Unlimited)
    """Gives leave for each request to a model endpoint."""


Factory = Callable[[AgentSpec, AgentScript, ModelSettings], ChatClient]

_LIBRARIES = {"openai": ("aiohttp", "openai", "openai.resources.chat.completions")}
"""What an agent imports at its first turn and takes seconds."""


async def warm_up(kind: str) -> None:
    """Import in a thread what the agent needs, before its time counts and off the event loop.

    A library that is missing is the agent's to report.
    """
    for name in _LIBRARIES.get(kind, ()):
        if name not in sys.modules:
            with suppress(ImportError):
                await asyncio.to_thread(import_module, name)


def load_agent(kind: str) -> Factory:
    """What builds the agent `kind`: a known name, or `package.module:AGENT`.

    Raises:
        ConfigurationError: see `hermes_queue.extensions.load`.
    """
    factory: Factory = extensions.load("agent", kind)
    return factory


def make_chat(spec: AgentSpec, script: AgentScript, model_settings: ModelSettings) -> ChatClient:
    """The agent of one trajectory. Never shared: scripted agents count their turns.

    Raises:
        ConfigurationError: unknown agent.
        ModelConfigError: the agent's own settings are unusable, e.g. no model is named.
    """
    return load_agent(spec.kind)(spec, script, model_settings)
