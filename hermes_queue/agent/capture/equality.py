"""Whether two calls are equal, and how long one is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
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
    is_long: bool
    """Whether reading all of the call would hold up the event loop."""


async def measured(call: ModelCall) -> Measure:
    """The measure of `call`, without holding up the event loop if it is long.

    Calls that differ only in `streamed`, `retry_count`, `hints` and `events` have equal ones.
    """
    count = sum(1 + len(message.tool_calls) for message in call.messages)
    if count <= _ON_THE_LOOP_MESSAGES and not any(map(_is_long, call.messages)):
        with suppress(_Long):
            return _measure(call, _ON_THE_LOOP_CHARS)
    return await asyncio.to_thread(_measure, call)


class _Long(Exception):
    """More has to be read than was allowed."""


def _is_long(message: Message) -> bool:
    texts = [message.content, message.reasoning]
    texts += [call.function.arguments for call in message.tool_calls]
    return any(text is not None and len(text) > _ON_THE_LOOP_CHARS for text in texts)


def reply_digest(message: Message) -> bytes:
    """A digest of what a reply says, without the ids of its calls."""
    digest = blake2b(digest_size=16)
    _add(digest, message.content or "")
    for call in message.tool_calls:
        _add(digest, call.function.name)
        _add(digest, call.function.arguments)
    return digest.digest()


def _measure(call: ModelCall, most_bytes: int | None = None) -> Measure:
    """The measure. Raises _Long if it takes more than `most_bytes`."""
    digest, size = blake2b(digest_size=16), 0
    for part in _parts(call):
        size += _add(digest, part)
        if most_bytes is not None and size > most_bytes:
            raise _Long
    return Measure(digest.digest(), size, is_long=most_bytes is None)


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
