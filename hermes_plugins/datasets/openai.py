"""OpenAI's fine-tuning format: one `{"messages": ..., "tools": ...}` per line.

By https://platform.openai.com/docs/guides/fine-tuning, arguments of calls are valid JSON text,
every call except those in the last message is answered, the last message is the assistant's, and
there are no other keys. Our ids are therefore only in the index beside the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_queue.models import Message, ScoredTrajectory
from hermes_queue.sinks.base import Format
from hermes_queue.sinks.datasets.lines import LinesSink, NotRepresentable


class OpenAiSink(LinesSink):
    """Appends one row per trajectory to `path` (`*.jsonl`). See `LinesSink`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, row, kind="openai")


def row(trajectory: ScoredTrajectory) -> Mapping[str, Any]:
    """The row of one trajectory.

    Raises:
        NotRepresentable: the format cannot hold the conversation.
    """
    made: dict[str, Any] = {"messages": [each.to_openai() for each in conversation(trajectory)]}
    if trajectory.tools:
        made["tools"] = list(trajectory.tools)
    return made


def conversation(trajectory: ScoredTrajectory) -> list[Message]:
    """The messages, without tool results after the last one of the assistant.

    The arguments of all calls are JSON objects, and all calls but the last ones are answered.

    Raises:
        NotRepresentable: the conversation is another.
    """
    messages = list(trajectory.messages)
    while messages and messages[-1].role != "assistant":
        messages.pop()
    if not messages:
        raise NotRepresentable("no assistant message")
    if not any(message.role == "user" for message in messages):
        raise NotRepresentable("no user message")
    _check_calls(messages)
    return messages


def _check_calls(messages: list[Message]) -> None:
    open_calls: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise NotRepresentable("an answer without a call")
            open_calls.discard(message.tool_call_id)
            continue
        if open_calls:
            raise NotRepresentable("a call without an answer")
        open_calls = {call.id for call in message.tool_calls}
        if not all(_is_object(call.function.arguments) for call in message.tool_calls):
            raise NotRepresentable("malformed tool call")


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):  # nested too deep
        return False


FORMAT = Format(
    help="OpenAI's fine-tuning chat format, in the JSON-lines file OUT.",
    open=lambda out, options, choice: OpenAiSink(out),
)
