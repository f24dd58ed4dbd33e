"""The agent whose calls are malformed."""

from __future__ import annotations

from hermes_queue.agent.chat import ChatClient
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import Scripted, act
from hermes_queue.models import AgentSpec, FunctionCall, Message, ToolCall
from hermes_queue.settings import ModelSettings


def garbage(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Makes malformed calls of every kind, then stops."""
    broken = [
        ("terminal", '{"command": "echo unclosed'),
        ("no_such_tool", "{}"),
        ("terminal", '{"command": 7, "colour": "red"}'),
        ("terminal", "[1, 2]"),
        ("", ""),
    ]

    async def write() -> list[Message]:
        return [
            act(ToolCall(id=f"garbage_{i}", function=FunctionCall(name=name, arguments=text)))
            for i, (name, text) in enumerate(broken)
        ]

    return Scripted(write)


AGENT = garbage
