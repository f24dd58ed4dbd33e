"""The answer of a program whose model gives it in a call: `finish(message=...)`."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_queue.agent.capture.tree.canonical import arguments
from hermes_queue.models import Message


def with_answer(transcript: Sequence[Message], place: str) -> list[Message]:
    """The transcript for the verifier, ending with the answer as a message of its own.

    `place` is `Program.answer`, `TOOL.ARGUMENT`. The transcript is returned as it is if there is
    none, or if the last message has no such call with a text.
    """
    tool, _, argument = place.partition(".")
    last = transcript[-1] if transcript and transcript[-1].role == "assistant" else None
    for call in reversed(last.tool_calls if last else ()):
        given = arguments(call) if call.function.name == tool else None
        text = given.get(argument) if isinstance(given, dict) else None
        if isinstance(text, str) and text:
            return [*transcript, Message(role="assistant", content=text)]
    return list(transcript)
