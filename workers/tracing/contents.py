"""Messages and results in spans: without secrets, and bounded.

Secrets are replaced before a text is cut. The other way round, the cut could leave half of one,
which nothing recognises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_queue.models import Message
from hermes_queue.telemetry.scrubbing import scrub

MOST_MESSAGES = 32
"""Messages of one span, the newest."""


def shortened(text: str, characters: int) -> str:
    """`text` without secrets, cut to `characters`."""
    clean = scrub(text)
    if len(clean) <= characters:
        return clean
    return f"{clean[:characters]} [... {len(clean) - characters} characters left out]"


def new_messages(sent: Sequence[Message], before: Sequence[Message]) -> Sequence[Message]:
    """Those of a conversation that the call before it had not been sent."""
    shared = 0
    for message, known in zip(sent, before, strict=False):
        if message is not known:
            break
        shared += 1
    return sent[shared:]


def encoded(messages: Sequence[Message], characters: int, finish_reason: str = "") -> str:
    """Messages as JSON in the form of `gen_ai.input.messages` and `gen_ai.output.messages`."""
    shown = [_parts(message, characters) for message in messages[-MOST_MESSAGES:]]
    if finish_reason:
        for each in shown:
            each["finish_reason"] = finish_reason
    return json.dumps(shown, ensure_ascii=False)


def _parts(message: Message, characters: int) -> dict[str, Any]:
    parts: list[Mapping[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": shortened(message.reasoning, characters)})
    if message.role == "tool":
        result = shortened(message.content or "", characters)
        name = shortened(message.tool_call_id or "", characters)
        parts.append({"type": "tool_call_response", "id": name, "response": result})
    elif message.content:
        parts.append({"type": "text", "content": shortened(message.content, characters)})
    for call in message.tool_calls:
        parts.append(
            {
                "type": "tool_call",
                "id": shortened(call.id, characters),
                "name": shortened(call.function.name, characters),
                "arguments": shortened(call.function.arguments, characters),
            }
        )
    return {"role": message.role, "parts": parts}
