"""The agent that applies the gold answer."""

from __future__ import annotations

from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import Scripted, act, say
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings


def oracle(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Applies the gold answer through the tools, one call per turn, then states it."""

    async def write() -> list[Message]:
        calls, answer = await script.oracle()
        return [*(act(call) for call in calls), say(answer)]

    return Scripted(write)


AGENT = oracle
