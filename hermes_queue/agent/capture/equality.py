"""Whether two calls are equal, and how long one is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from hermes_queue.agent.capture.calls import ModelCall
from hermes_queue.models import Message

_ON_THE_LOOP_CHARS = 1 << 19
"""A longer call is read in a thread; half a million characters take about a millisecond."""
_ON_THE_LOOP_MESSAGES = 500
"""And so is one of more messages and calls: each takes time, however short it is."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What equal calls share."""

    digest: bytes
    size_bytes: int
    """Text of messages and tools."""


async def measured(call: ModelCall) -> Measure:
    """The measure of `call`, without holding up the event loop if it is long.

    Calls that differ only in `streamed`, `retry_count`, `hints` and `events` have equal ones.
    """
    return await asyncio.to_thread(_measure, call) if is_long(call) else _measure(call)


def is_long(call: ModelCall) -> bool:
    """Whether reading all of a call would hold up the event loop."""
    chars = sum(len(message.content or "") for message in call.messages)
    count = sum(1 + len(message.tool_calls) for message in call.messages)
    return chars > _ON_THE_LOOP_CHARS or count > _ON_THE_LOOP_MESSAGES


def reply_digest(message: Message) -> bytes:
    """A digest of what a reply says, without the ids of its calls."""
    digest = blake2b(digest_size=16)
    _add(digest, message.content or "")
    for call in message.tool_calls:
        _add(digest, call.function.name)
        _add(digest, call.function.arguments)
    return digest.digest()


def _measure(call: ModelCall) -> Measure:
    digest = blake2b(digest_size=16)
    size = sum(_add(digest, part) for part in _parts(call))
    return Measure(digest.digest(), size)


def _add(digest: blake2b, text: str) -> int:
    data = text.encode("utf-8", "surrogatepass")
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)
    return len(data)


def _parts(call: ModelCall) -> Iterator[str]:
    yield f"{call.dialect} {call.path} {call.requested_model} {call.max_tokens}"
    for tool in call.tools:
        yield json.dumps(tool, sort_keys=True, default=str)
    for message in call.messages:
        # Lists differ in length, texts in being there.
        yield f"{message.role} {len(message.tool_calls)} {message.content is None}"
        yield message.content or ""
        yield message.reasoning or ""
        yield message.tool_call_id or ""
        for each in message.tool_calls:
            yield each.id
            yield each.function.name
            yield each.function.arguments
