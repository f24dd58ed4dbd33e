"""Where a conversation departs from what was said before, for the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_queue.agent.capture.tree.canonical import arguments, same_value
from hermes_queue.models import Message, ToolCall

_KEY_CHARS = 64
"""Characters of an argument's name that are named."""


def first_difference(said: Message, sent: Message, at: int) -> str:
    """The place in the messages' JSON where `sent`, number `at`, first differs from `said`."""
    place = f"messages[{at}]"
    if said.role != sent.role:
        return f"{place}.role"
    trimmed = said.role == "assistant"
    texts = [message.content or "" for message in (said, sent)]
    if texts[0] != texts[1] and not (trimmed and texts[0].strip() == texts[1].strip()):
        return f"{place}.content"
    if len(said.tool_calls) != len(sent.tool_calls):
        return f"{place}.tool_calls"
    for number, (one, other) in enumerate(zip(said.tool_calls, sent.tool_calls, strict=True)):
        if part := _in_call(one, other):
            return f"{place}.tool_calls[{number}].function.{part}"
    return f"{place}.tool_call_id" if said.role == "tool" else place


def first_changed_tool(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> str:
    """The place in the tools' JSON where they first differ."""
    pairs = enumerate(zip(before, now, strict=False))
    same = min(len(before), len(now))
    return f"tools[{next((at for at, (one, other) in pairs if not same_value(one, other)), same)}]"


def _in_call(said: ToolCall, sent: ToolCall) -> str:
    if said.function.name != sent.function.name:
        return "name"
    one, other = arguments(said), arguments(sent)
    if same_value(one, other):
        return ""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        for name in names:
            if name not in one or name not in other or not same_value(one[name], other[name]):
                return f"arguments.{name[:_KEY_CHARS]}"
    return "arguments"
