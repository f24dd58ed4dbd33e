"""The agent that does nothing."""

from __future__ import annotations

from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import Scripted, say
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings


def nop(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Stops at once."""

    async def write() -> list[Message]:
        return [say("Nothing to do.")]

    return Scripted(write)


AGENT = nop
