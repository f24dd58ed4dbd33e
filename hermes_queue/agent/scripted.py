"""Agents that need no model, to test the whole chain.

Each is a coroutine that writes the assistant's messages, which `Scripted` plays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.registry import AgentScript
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import AgentSpec, FunctionCall, Message, ToolCall, Turn
from hermes_queue.settings import ModelSettings
from hermes_queue.tools.base import make_call

DONE = "Done."


class Scripted:
    """Plays a list of assistant messages, then a final message without tool calls."""

    def __init__(self, write: Callable[[], Awaitable[list[Message]]]) -> None:
        self._write = write
        self._script: list[Message] | None = None
        self._played = 0

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
    ) -> Reply:
        """The next message of the script, whatever the conversation."""
        if self._script is None:
            self._script = await self._write()
        message = say(DONE)
        if self._played < len(self._script):
            message = self._script[self._played]
        self._played += 1
        finish = "tool_calls" if message.tool_calls else "stop"
        return Reply(message, Turn(server="scripted", finish_reason=finish))


def say(text: str) -> Message:
    """A message without tool calls, which ends the trajectory."""
    return Message(role="assistant", content=text)


def act(*calls: ToolCall) -> Message:
    """A message with tool calls."""
    return Message(role="assistant", tool_calls=calls)


def oracle(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Applies the gold answer through the tools, one call per turn, then states it."""

    async def write() -> list[Message]:
        calls, answer = await script.oracle()
        return [*(act(call) for call in calls), say(answer)]

    return Scripted(write)


def nop(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Stops at once."""

    async def write() -> list[Message]:
        return [say("Nothing to do.")]

    return Scripted(write)


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


def slow(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Sleeps in the slot. Params: {"seconds": 5, "turns": 1}."""
    seconds = _number(spec, "seconds", 5.0)
    turns = int(_number(spec, "turns", 1.0))

    async def write() -> list[Message]:
        command = f"sleep {seconds:g}"
        return [act(make_call(f"slow_{i}", "terminal", command=command)) for i in range(turns)]

    return Scripted(write)


def tamper(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """Tries to cheat the verifier. Params: {"case": name}, default: one case per sample index.

    Stops at once if the env has no cases.
    """
    names = sorted(script.tamper)
    case = spec.params.get("case")
    if case is None and names:
        case = names[script.sample_index % len(names)]
    if case is not None and case not in script.tamper:
        raise ModelConfigError(
            f"agent tamper: unknown case {case!r}; known: {', '.join(names) or 'none'}"
        )

    async def write() -> list[Message]:
        steps = script.tamper[case] if case is not None else ()
        return [say(step) if isinstance(step, str) else act(step) for step in steps]

    return Scripted(write)


def _number(spec: AgentSpec, name: str, default: float) -> float:
    value = spec.params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ModelConfigError(f"agent {spec.kind}: {name} must be a number >= 0, not {value!r}")
    return float(value)
