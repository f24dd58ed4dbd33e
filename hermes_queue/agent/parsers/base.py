"""The protocol of tool-call parsers, and functions that the text parsers share.

A parser reads a reply as text and never raises, since anything a model writes is data. All
parsers take time linear in the length of the text, even if it was made to slow them down (for
those of the library see `from_renderers`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

CallStatus = Literal[
    "ok",
    "invalid_json",
    "invalid_arguments",
    "missing_name",
    "malformed",
    "unclosed",
    "unknown_tool",
]
"""ok: a name, and arguments that are a JSON object. invalid_json: not JSON where the format
requires it. invalid_arguments: JSON, but not an object. malformed: another violation of the
format. unclosed: the text ended inside the call. unknown_tool: a library's verdict on the name."""

MAX_FAILED = 16
"""Number of calls in a reply that may be invalid JSON; the rest is treated as text. Each may have
been read to the end of the reply, and for an error message the JSON library counts the lines
before it, so this bounds the time that hostile text costs."""

Tools = Sequence[Mapping[str, Any]]
"""OpenAI tool schemas."""

_THINK, _THINK_END = "<think>", "</think>"
_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r'"name"[ \t\r\n]{0,99}:[ \t\r\n]{0,99}"([^"\\\r\n]{1,200})"')
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One tool call or attempt at one."""

    name: str | None
    arguments: str
    """Text as the model wrote it. Formats other than JSON are converted to a JSON object. For a
    call that is not ok this is the raw text, unless the format separates the arguments."""
    raw: str
    status: CallStatus
    span: tuple[int, int]
    """Half-open range of the whole call in the parsed text, including its tags."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A parsed reply."""

    calls: tuple[ParsedCall, ...]
    content: str | None
    """The text outside of calls and reasoning; None if there is none."""
    reasoning: str | None


class ToolCallParser(Protocol):
    """Splits a reply into calls, text and reasoning."""

    @property
    def name(self) -> str:
        """Name of the format, that of vLLM if it has one."""

    def parse(self, text: str, tools: Tools = (), *, reasoning: bool = True) -> ParsedReply:
        """Parse `text`. Never raises.

        Args:
            text: the assistant's message as the model wrote it, without end-of-turn tokens.
            tools: the offered tools; formats without types take the types of arguments from it.
            reasoning: whether to separate `<think>` blocks.
        """


FindCalls = Callable[[str, int, Tools], list[ParsedCall]]
"""(text, start, tools) -> the calls in order, with disjoint spans."""


@dataclass(frozen=True, slots=True)
class TextParser:
    """A `ToolCallParser` made of a function that finds the calls."""

    name: str
    opener: str
    """Text that begins a call; it also ends reasoning that was never closed."""
    find_calls: FindCalls

    def parse(self, text: str, tools: Tools = (), *, reasoning: bool = True) -> ParsedReply:
        """See `ToolCallParser.parse`."""
        reasoning_text, start = split_reasoning(text, self.opener) if reasoning else (None, 0)
        calls = self.find_calls(text, start, tools)
        return ParsedReply(tuple(calls), remaining(text, start, calls), reasoning_text)


def remaining(text: str, start: int, calls: Sequence[ParsedCall]) -> str | None:
    """The text after `start` outside of `calls`; unchanged if there are none."""
    if not calls and start == 0:
        return text or None
    parts, at = [], start
    for call in calls:
        parts.append(text[at : call.span[0]])
        at = call.span[1]
    parts.append(text[at:])
    return "".join(parts).strip() or None


def split_reasoning(text: str, opener: str) -> tuple[str | None, int]:
    """The reasoning at the beginning of a text, and the offset of the rest.

    Templates may have written `<think>` into the prompt, so the opening tag can be missing.
    Reasoning that is not closed ends at the first call, or with the text.
    """
    begin = _SPACE.match(text, 0)
    start = begin.end() if begin else 0
    opened = text.startswith(_THINK, start)
    close, call = text.find(_THINK_END), text.find(opener)
    if opened:
        start += len(_THINK)
        if close == -1:
            end = call if call != -1 else len(text)
            return text[start:end].strip() or None, end
    elif close == -1 or -1 < call < close:
        return None, 0
    return text[start:close].strip() or None, close + len(_THINK_END)


class Finder:
    """`str.find` for increasing positions, linear over all calls together."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next: dict[str, int] = {}

    def find(self, needle: str, start: int) -> int:
        """The next offset of `needle` at or after `start`; -1 = none."""
        known = self._next.get(needle, -2)
        if known == -2 or -1 < known < start:
            known = self._next[needle] = self._text.find(needle, start)
        return known


def find_or_end(text: str, needle: str, start: int) -> int:
    """The next offset of `needle` at or after `start`, or the end of the text."""
    at = text.find(needle, start)
    return at if at != -1 else len(text)


def skip_space(text: str, start: int) -> int:
    """The first position at or after `start` that is not JSON whitespace."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


class NotJson(ValueError):
    """The text is not the JSON that was expected."""

    def __init__(self, message: str, *, cut: bool) -> None:
        super().__init__(message)
        self.cut = cut
        """Whether the text ended too early and might have become valid."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a JSON object: its value, and the text of the value."""

    value: Any
    text: str


def read_object(text: str, start: int) -> tuple[dict[str, Member], int]:
    """Read the JSON object at `start`: its members and its end. Raises NotJson."""
    if not text.startswith("{", start):
        raise NotJson("no object", cut=start >= len(text))
    members: dict[str, Member] = {}
    at = skip_space(text, start + 1)
    if text.startswith("}", at):
        return members, at + 1
    while True:
        key, at = read_value(text, at)
        at = skip_space(text, at)
        if not isinstance(key, str) or not text.startswith(":", at):
            raise NotJson("no key", cut=at >= len(text))
        begin = skip_space(text, at + 1)
        value, end = read_value(text, begin)
        members[key] = Member(value, text[begin:end])
        at = skip_space(text, end)
        if text.startswith("}", at):
            return members, at + 1
        if not text.startswith(",", at):
            raise NotJson("no comma", cut=at >= len(text))
        at = skip_space(text, at + 1)


def read_value(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON value at `start`: the value and its end. Raises NotJson."""
    try:
        return _decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg, cut=_is_cut(text, error)) from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits; too deep
        raise NotJson(str(error), cut=False) from None


def _is_cut(text: str, error: json.JSONDecodeError) -> bool:
    if error.msg.startswith("Unterminated") or skip_space(text, error.pos) == len(text):
        return True
    rest = text[error.pos : error.pos + 10].rstrip()
    if len(text) - error.pos >= 10:
        return False
    return error.msg.startswith("Invalid \\u") or any(word.startswith(rest) for word in _WORDS)


def call_of(
    members: Mapping[str, Member],
    raw: str,
    span: tuple[int, int],
    *,
    names: Sequence[str] = ("arguments", "parameters"),
) -> ParsedCall:
    """The call in a JSON object with a name and arguments, by default none.

    Arguments that were encoded twice, as a JSON text of an object, are decoded once.
    """
    name = members["name"].value if "name" in members else None
    given = next((members[key] for key in names if key in members), Member({}, "{}"))
    arguments, value = given.text, given.value
    if isinstance(value, str):
        arguments = value if value.strip() else "{}"
        try:
            value, end = read_value(arguments, skip_space(arguments, 0))
            value = value if skip_space(arguments, end) == len(arguments) else None
        except NotJson:
            value = None
    if not isinstance(name, str) or not name:
        return ParsedCall(None, raw, raw, "missing_name", span)
    status: CallStatus = "ok" if isinstance(value, dict) else "invalid_arguments"
    return ParsedCall(name, arguments, raw, status, span)


def failed_call(raw: str, status: CallStatus, span: tuple[int, int]) -> ParsedCall:
    """A call that cannot be parsed; with its name if that is legible."""
    match = _NAME.search(raw)
    return ParsedCall(match.group(1) if match else None, raw, raw, status, span)
