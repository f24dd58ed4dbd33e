"""The agent that does nothing."""

from __future__ import annotations

from hermes_queue.agent.parameters import AgentParams
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import say, scripted
from hermes_queue.models import Message


async def write(params: AgentParams, script: AgentScript) -> list[Message]:
    """Stop at once."""
    return [say("Nothing to do.")]


AGENT = scripted(write)
