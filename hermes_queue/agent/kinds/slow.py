"""The agent that sleeps in the slot."""

from __future__ import annotations

from pydantic import Field

from hermes_queue.agent.parameters import AgentParams
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import act, scripted
from hermes_queue.models import Message
from hermes_queue.tools.base import make_call


class SlowParams(AgentParams):
    """How long each call of `sleep` takes, and how many there are."""

    seconds: float = Field(default=5.0, ge=0, strict=True)
    turns: int = Field(default=1, ge=0)


async def write(params: SlowParams, script: AgentScript) -> list[Message]:
    """Sleep in the slot."""
    command = f"sleep {params.seconds:g}"
    return [act(make_call(f"slow_{i}", "terminal", command=command)) for i in range(params.turns)]


AGENT = scripted(write, SlowParams)
