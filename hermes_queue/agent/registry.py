"""Agents by name: maps the `kind` of an `AgentSpec` to its chat client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from hermes_queue import extensions
from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.agent.parameters import AgentParams, read_params
from hermes_queue.errors import ConfigurationError, ModelConfigError
from hermes_queue.models import AgentSpec, ToolCall
from hermes_queue.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class AgentScript:
    """The trajectory as agents see it, and the scripts of scripted agents for its item."""

    oracle: Callable[[], Awaitable[tuple[Sequence[ToolCall], str]]]
    """Returns the gold tool calls and the gold final message; called by the oracle only."""
    tamper: Mapping[str, Sequence[ToolCall | str]] = field(default_factory=dict)
    """Ways to cheat, by name; a string is sent as a message without tool calls."""
    sample_index: int = 0
    instance_id: str = ""
    trajectory_id: str = ""
    """Sent to the endpoint, so that a router can keep a trajectory's turns together."""
    group_id: str = ""
    """Selects one of several endpoints, the same for all samples of a group."""
    endpoint_failures: int = 0
    """Earlier attempts that failed because of an endpoint; each moves on to the next one."""
    policy_version: str | None = None
    """Policy version that the job requested."""
    limiter: Limiter = field(default_factory=Unlimited)
    """Gives permission for each request to a model endpoint."""


Factory = Callable[[AgentSpec, AgentScript, ModelSettings], ChatClient]


@dataclass(frozen=True, slots=True)
class Agent:
    """A `Factory` that declares its parameters, so that producers can refuse any others."""

    make: Factory
    params: type[AgentParams] = AgentParams
    in_slot: bool = False
    """The agent is a program in the slot, for whose calls `make` makes the client."""
    not_in_runs: str = ""
    """Why no worker can run it, and what to use instead; "" = workers can."""

    def __call__(self, spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
        """The agent of one trajectory."""
        return self.make(spec, script, settings)


_CALLS = ("aiohttp", "openai", "openai.resources.chat.completions")
_LIBRARIES = {"openai": _CALLS, "command": (*_CALLS, "aiohttp.web")}
"""Libraries that an agent imports at its first turn, which takes seconds."""


async def warm_up(kind: str) -> None:
    """Import the agent's libraries in a thread, before its time counts. Ignores missing ones."""
    for name in _LIBRARIES.get(kind, ()):
        if name not in sys.modules:
            with suppress(ImportError):
                await asyncio.to_thread(import_module, name)


def load_agent(kind: str) -> Factory:
    """An agent by name, see `extensions.load`. Raises ConfigurationError."""
    factory: Factory = extensions.load("agent", kind)
    return factory


def runs_in_slot(kind: str) -> bool:
    """Whether the agent is a program in the slot. Raises ConfigurationError if it is unknown."""
    agent = load_agent(kind)
    return isinstance(agent, Agent) and agent.in_slot


def check_in_runs(kind: str) -> None:
    """Raise ConfigurationError if the agent is unknown, or one that no worker can run."""
    agent = load_agent(kind)
    if isinstance(agent, Agent) and agent.not_in_runs:
        raise ConfigurationError(f"agent {kind}: {agent.not_in_runs}")


def check_params(kind: str, values: Mapping[str, Any]) -> None:
    """Check the parameters of an agent before jobs are sent. A plain function takes any.

    Raises:
        ConfigurationError: the agent has no such parameter, or not with this value.
    """
    agent = load_agent(kind)
    if not isinstance(agent, Agent):
        return
    known = agent.params.model_fields
    if unknown := sorted(values.keys() - known.keys()):
        raise ConfigurationError(
            f"--agent-param {unknown[0]}: agent {kind} has no such parameter; it has "
            f"{', '.join(sorted(known))}"
        )
    try:
        read_params(agent.params, values, f"--agent-param: agent {kind}")
    except ModelConfigError as error:
        raise ConfigurationError(str(error)) from error


def make_chat(spec: AgentSpec, script: AgentScript, model_settings: ModelSettings) -> ChatClient:
    """The agent of one trajectory. Never share it: scripted agents count their turns.

    Raises ConfigurationError if it is unknown, ModelConfigError if its parameters are invalid.
    """
    return load_agent(spec.kind)(spec, script, model_settings)
