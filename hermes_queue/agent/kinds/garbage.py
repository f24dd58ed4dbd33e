"""The agent whose calls are malformed."""

from __future__ import annotations

from hermes_queue.agent.parameters import AgentParams
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import act, scripted
from hermes_queue.models import FunctionCall, Message, ToolCall

BROKEN = [
    ("terminal", '{"command": "echo unclosed'),
    ("no_such_tool", "{}"),
    ("terminal", '{"command": 7, "colour": "red"}'),
    ("terminal", "[1, 2]"),
    ("", ""),
]


async def write(params: AgentParams, script: AgentScript) -> list[Message]:
    """Make malformed calls of every kind, then stop."""
    return [
        act(ToolCall(id=f"garbage_{i}", function=FunctionCall(name=name, arguments=text)))
        for i, (name, text) in enumerate(BROKEN)
    ]


AGENT = scripted(write)
