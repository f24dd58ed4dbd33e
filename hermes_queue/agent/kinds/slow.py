"""The agent that sleeps in the slot."""

from __future__ import annotations

from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import Scripted, act
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings
from hermes_queue.tools.base import make_call


def slow(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Sleeps in the slot. Params: {"seconds": 5, "turns": 1}."""
    seconds = _number(spec, "seconds", 5.0)
    turns = int(_number(spec, "turns", 1.0))

    async def write() -> list[Message]:
        command = f"sleep {seconds:g}"
        return [act(make_call(f"slow_{i}", "terminal", command=command)) for i in range(turns)]

    return Scripted(write)


def _number(spec: AgentSpec, name: str, default: float) -> float:
    value = spec.params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ModelConfigError(f"agent {spec.kind}: {name} must be a number >= 0, not {value!r}")
    return float(value)


AGENT = slow
