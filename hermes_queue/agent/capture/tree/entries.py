"""Messages as the tree holds them, and as a program sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.agent.capture.tree.canonical import Meant, digest, same_reasoning
from hermes_queue.models import Message


@dataclass(slots=True, eq=False)
class TreeEntry:
    """A message in the tree, or the beginning of conversations with the same tools."""

    above: TreeEntry | None
    message: Message
    index: int = -1
    """In `AgentResult.nodes`."""
    depth: int = 0
    turn: int | None = None
    sent: bytes = b""
    """With `history=agent`: digest of the conversation as the program sent it."""
    reasoning_missing: bool = False
    """Whether the program has sent it back without its reasoning."""
    below: dict[bytes, list[TreeEntry]] = field(default_factory=dict)
    """By the key of the message; the newest one last."""
    newest: TreeEntry | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    """Of a beginning: what is offered there."""
    tools_key: bytes = b""
    tools_chars: int = 0

    def path(self) -> list[TreeEntry]:
        """The entries from the first message to this one."""
        entries: list[TreeEntry] = []
        entry = self
        while entry.above is not None:
            entries.append(entry)
            entry = entry.above
        return entries[::-1]


def with_our_ids(path: Sequence[TreeEntry], rest: Sequence[Meant]) -> tuple[Meant, ...]:
    """New messages with the ids that our replies gave to the calls which they answer."""
    replies = [entry.message for entry in path if entry.message.role == "assistant"]
    ours = {
        (number, i): call.id
        for number, message in enumerate(replies)
        for i, call in enumerate(message.tool_calls)
    }
    made: list[Meant] = []
    for each in rest:
        own = ours.get(each.answers) if each.answers else None
        if own is None or own == each.message.tool_call_id:
            made.append(each)
            continue
        message = each.message.model_copy(update={"tool_call_id": own})
        made.append(Meant(message, each.key, each.calls, each.answers))
    return tuple(made)


def digests_as_sent(said: Sequence[Meant]) -> tuple[bytes, ...]:
    """For each message: a digest of the conversation up to it, with reasoning."""
    digests: list[bytes] = []
    last = b""
    for each in said:
        reasoning = (each.message.reasoning or "").strip()
        last = digest([last.hex(), each.key.hex(), reasoning])
        digests.append(last)
    return tuple(digests)


def is_as_sent(reply: TreeEntry, said: Sequence[Meant], sent: Sequence[bytes]) -> bool:
    """Whether the prompt of a reply was what the program sends now, and the reply has come back."""
    before = sent[reply.depth - 2] if reply.depth > 1 else b""
    return before == reply.sent and same_reasoning(reply.message, said[reply.depth - 1].message)


def chars(message: Message) -> int:
    """Characters of a message."""
    texts = [message.content, message.reasoning, message.tool_call_id]
    for call in message.tool_calls:
        texts += [call.id, call.function.name, call.function.arguments]
    return sum(len(text) for text in texts if text)
