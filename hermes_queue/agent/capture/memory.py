"""Conversations that a later call may continue by the id of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_queue.models import Message

RESPONSES_MAX = 16
BYTES_MAX = 1 << 26


class Responses:
    """The newest answers of one session, with what was said before them."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[Message, ...], int]] = {}

    def keep(self, name: str, messages: tuple[Message, ...]) -> None:
        """Keep a conversation, and drop the oldest ones; one that is too large is not kept.

        Conversations share their messages, but each is counted as if it were alone.
        """
        self._kept.pop(name, None)
        size = sum(map(_size, messages))
        if size > BYTES_MAX:
            return
        self._kept[name] = messages, size
        while len(self._kept) > RESPONSES_MAX or self._bytes() > BYTES_MAX:
            self._kept.pop(next(iter(self._kept)))

    def _bytes(self) -> int:
        return sum(size for _, size in self._kept.values())

    def conversation(self, name: str) -> Sequence[Message] | None:
        """The conversation up to and including this answer; None if it is not kept."""
        found = self._kept.get(name)
        return None if found is None else found[0]


def _size(message: Message) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls)
    return len(message.content or "") + len(message.reasoning or "") + calls
