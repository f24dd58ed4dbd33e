"""What a message means, whatever way a program writes it.

Programs do not send back what they were given: JSON of arguments gets other blanks, an empty text
becomes null, reasoning is left out, ids are replaced. Two messages mean the same if their keys are
equal. The text of the system, of users and of tools counts letter by letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from hermes_queue.agent.capture.calls import ModelCall
from hermes_queue.models import Message, ToolCall

_EXACT_DIGITS = 15
"""Decimal digits of an integer that every program's numbers can hold."""


class Unplaceable(ValueError):
    """A call that the tree does not take: nested too deep, or too much text in all."""


@dataclass(frozen=True, slots=True)
class Meant:
    """A message of one conversation, and its key."""

    message: Message
    key: bytes
    calls: tuple[tuple[int, int], ...] = ()
    """For each of its calls: the number of the assistant's message, the number in it."""
    answers: tuple[int, int] | None = None
    """The call that a tool's result answers, in the same terms; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Understood:
    """What a call says and offers."""

    said: tuple[Meant, ...]
    tools_key: bytes
    tools_chars: int
    """Characters of the tools as JSON."""


def understood(call: ModelCall) -> Understood:
    """What a call means. In time linear in its text. Raises Unplaceable: it is nested too deep."""
    tools = [_json(tool) for tool in call.tools]
    return Understood(tuple(meant(call.messages)), digest(tools), sum(map(len, tools)))


def meant(messages: Sequence[Message]) -> Iterator[Meant]:
    """The messages of a conversation with their keys, in time linear in its text.

    Without `reasoning`, which programs may leave out. Calls are known by their place, results by
    the call that they answer.
    """
    places: dict[str, tuple[int, int]] = {}
    replies = 0
    for message in messages:
        calls: tuple[tuple[int, int], ...] = ()
        if message.role == "assistant":
            calls = tuple((replies, i) for i in range(len(message.tool_calls)))
            places.update(zip((call.id for call in message.tool_calls), calls, strict=True))
            replies += 1
        answers = places.get(message.tool_call_id or "")
        yield Meant(message, _key(message, answers), calls, answers)


def same_value(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; False if they are nested too deep to be compared."""
    try:
        return bool(one == other)
    except RecursionError:
        return False


def same_reasoning(one: Message, other: Message) -> bool:
    """Whether both have the same reasoning, or both have none."""
    return (one.reasoning or "").strip() == (other.reasoning or "").strip()


def arguments(call: ToolCall) -> Any:
    """The arguments of a call as JSON values; its text if they are none.

    Numbers are equal if JavaScript takes them for equal, since programs in it write 1.0 as 1.
    """
    try:
        return _DECODER.decode(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        return call.function.arguments


def digest(parts: Sequence[str]) -> bytes:
    """A digest of the parts in their order."""
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _key(message: Message, answers: tuple[int, int] | None) -> bytes:
    content = message.content or ""
    parts: list[str] = [message.role]
    if message.role == "assistant":
        # Templates and programs trim the blanks around a reply.
        parts.append(content.strip())
        for call in message.tool_calls:
            parts += (call.function.name, _canonical_arguments(call))
    elif message.role == "tool":
        parts += (content, str(answers or message.tool_call_id))
    else:
        parts.append(content)
    return digest(parts)


def _canonical_arguments(call: ToolCall) -> str:
    value = arguments(call)
    if isinstance(value, str):  # no JSON, or the JSON of a text, which differs from that text
        return call.function.arguments
    try:
        return _json(value)
    except Unplaceable:
        return call.function.arguments


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _EXACT_DIGITS else _number(text)


def _number(text: str) -> int | float:
    value = float(text)
    whole = value.is_integer() and abs(value) < 10**_EXACT_DIGITS
    return int(value) if whole else value


def _json(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    except (RecursionError, TypeError, ValueError) as error:
        raise Unplaceable(f"a tool or a call cannot be read: {type(error).__name__}") from error


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_number)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
