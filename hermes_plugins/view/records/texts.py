"""The words by which a record is found.

They are those of the first user message, the last answer, the arguments of tool calls, the failure
and the report: what people remember. Tool output is most of a record, and is searched with `grep:`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from hermes_plugins.view.records.values import listing, mapping

_MESSAGE_CHARACTERS = 16_000
_ARGUMENT_CHARACTERS = 2_000
_ARGUMENTS_CHARACTERS = 24_000
_REPORT_CHARACTERS = 24_000
_REPORT_TEXT_CHARACTERS = 8_000
_REPORT_NODES = 2_000
_NOT_WORDS = frozenset({"patch", "output_tail", "output"})
"""Keys of a report with text that is as long as a tool's output."""
_WORD = re.compile(r"\w+")
_WORD_CHARACTERS = 64


def searchable_text(raw: Mapping[str, Any]) -> str:
    """The words of a record, separated by blanks, each once. Never raises."""
    seen: dict[str, None] = {}
    for part in _parts(raw):
        for word in words_of(part):
            seen[word] = None
    return " ".join(seen)


def words_of(text: str) -> list[str]:
    """The words in `text`, in lower case; a query is cut into the same words.

    Each consists of ASCII letters, digits and underscores, so that SQLite, which knows another
    version of Unicode, never cuts one into two.
    """
    return [_ascii(word[:_WORD_CHARACTERS]) for word in _WORD.findall(text.lower())]


def _ascii(word: str) -> str:
    return word if word.isascii() else f"_{word.encode(errors='replace').hex()}"


def _parts(raw: Mapping[str, Any]) -> Iterator[str]:
    messages = [m for m in listing(raw.get("messages")) if isinstance(m, dict)]
    yield _content(next((m for m in messages if m.get("role") == "user"), {}))
    yield _content(next((m for m in reversed(messages) if m.get("role") == "assistant"), {}))
    yield from _arguments(messages)
    failure = mapping(raw.get("failure"))
    for name in ("type", "message"):
        yield _text(failure.get(name), _REPORT_TEXT_CHARACTERS)
    yield from _report(raw.get("report"))


def _content(message: Mapping[str, Any]) -> str:
    return _text(message.get("content"), _MESSAGE_CHARACTERS)


def _arguments(messages: list[dict[str, Any]]) -> Iterator[str]:
    left = _ARGUMENTS_CHARACTERS
    for message in messages:
        for call in listing(message.get("tool_calls")):
            function = mapping(mapping(call).get("function"))
            given = _text(function.get("arguments"), min(left, _ARGUMENT_CHARACTERS))
            left -= len(given)
            yield given.replace("\\n", " ").replace("\\t", " ")
            if left <= 0:
                return


def _report(report: object) -> Iterator[str]:
    """Keys and texts of a report, breadth first, until there are enough of them."""
    waiting: deque[object] = deque([report])
    left, nodes = _REPORT_CHARACTERS, _REPORT_NODES
    while waiting and left > 0 and nodes > 0:
        value = waiting.popleft()
        nodes -= 1
        if isinstance(value, str):
            part = value[: min(left, _REPORT_TEXT_CHARACTERS)]
            left -= len(part)
            yield part
        elif isinstance(value, dict):
            for key in islice(value, nodes):
                if key not in _NOT_WORDS:
                    waiting += (key, value[key])
        elif isinstance(value, list | tuple):
            waiting += islice(value, nodes)


def _text(value: object, most: int) -> str:
    return value[:most] if isinstance(value, str) else ""
