"""Qwen 3 Coder and 3.5: XML-like calls whose argument values have neither quotes nor types.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

The outer tags may be missing. Values become JSON according to the types in the tool's schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hermes_queue.agent.parsers.base import (
    CallStatus,
    Finder,
    NotJson,
    ParsedCall,
    TextParser,
    Tools,
    read_value,
    skip_space,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_KINDS: dict[type, str] = {bool: "boolean", int: "integer", float: "number"}
_KINDS |= {str: "string", list: "array", dict: "object"}


def find_calls(text: str, start: int, tools: Tools) -> list[ParsedCall]:
    """The calls in `text` from `start` on."""
    finder, calls, at = Finder(text), list[ParsedCall](), start
    while True:
        tag, function = finder.find(OPEN, at), finder.find(FUNCTION, at)
        if tag == -1 and function == -1:
            return calls
        if function == -1 or (
            -1 < tag < function and skip_space(text, tag + len(OPEN)) != function
        ):
            calls.append(_without_function(text, finder, tag))
        else:
            begin = tag if -1 < tag < function else function
            calls.append(_Call(text, finder, begin, function).read(tools))
        at = calls[-1].span[1]


def _without_function(text: str, finder: Finder, begin: int) -> ParsedCall:
    """A call with an outer tag but no function: it is cut off, or in another format."""
    body = skip_space(text, begin + len(OPEN))
    close = finder.find(CLOSE, body)
    stop, last = (close, close + len(CLOSE)) if close != -1 else (len(text), len(text))
    raw = text[body:stop].strip()
    status: CallStatus = "malformed"
    if close == -1 and FUNCTION.startswith(raw[: len(FUNCTION)]):
        status = "unclosed"
    return ParsedCall(None, raw, raw, status, (begin, last))


class _Call:
    """Reads one call. Positions only increase, which keeps the `Finder` linear."""

    def __init__(self, text: str, finder: Finder, begin: int, function: int) -> None:
        self._text = text
        self._finder = finder
        self._begin = begin
        self._at = function + len(FUNCTION)
        self._values: dict[str, str] = {}

    def read(self, tools: Tools) -> ParsedCall:
        """The call, its arguments typed by `tools`."""
        name = self._tag_value()
        if name is None:
            return self._done(None, "unclosed" if self._ended() else "malformed")
        if not name:
            self._close()
            return self._done(None, "missing_name")
        self._at = skip_space(self._text, self._at)
        while self._text.startswith(PARAMETER, self._at):
            if status := self._parameter():
                return self._done(name, status)
        if not self._close():
            return self._done(name, "unclosed" if self._ended() else "malformed")
        types = _types(tools, name)
        typed = {key: _typed(value, types.get(key)) for key, value in self._values.items()}
        return self._done(name, "ok", json.dumps(typed, ensure_ascii=False))

    def _tag_value(self) -> str | None:
        """The text up to the next `>`; None if a line break comes first."""
        end = self._finder.find(">", self._at)
        line = self._finder.find("\n", self._at)
        if end == -1 or -1 < line < end:
            if end == -1 and line == -1:
                self._at = len(self._text)
            return None
        value = self._text[self._at : end]
        self._at = end + 1
        return value.strip()

    def _parameter(self) -> CallStatus | None:
        """Read one parameter; returns its error, if any."""
        self._at += len(PARAMETER)
        key = self._tag_value()
        if not key:
            return "unclosed" if self._ended() else "malformed"
        end = self._finder.find(PARAMETER_END, self._at)
        function_end = self._finder.find(FUNCTION_END, self._at)
        following = self._finder.find(FUNCTION, self._at)
        if end == -1 or (-1 < function_end < following < end):
            if function_end == -1:
                self._at = len(self._text)
                return "unclosed"
            end = after = function_end  # the closing tag was forgotten
        else:
            after = end + len(PARAMETER_END)
        # The template's line breaks around a value go; other white space belongs to it.
        value = self._text[self._at : end]
        self._values[key] = value.removeprefix("\n").removesuffix("\n")
        self._at = skip_space(self._text, after)
        return None

    def _close(self) -> bool:
        """Move past the end of the call; False if it is not there."""
        at = skip_space(self._text, self._at)
        if not self._text.startswith(FUNCTION_END, at):
            return False
        self._at = at + len(FUNCTION_END)
        self._close_outer()
        return True

    def _ended(self) -> bool:
        """Whether only the beginning of a tag is left."""
        rest = self._text[self._at : self._at + len(PARAMETER_END)].strip()
        if len(self._text) - self._at > len(rest) + 2:
            return False
        return any(tag.startswith(rest) for tag in (PARAMETER, FUNCTION_END))

    def _done(
        self, name: str | None, status: CallStatus, arguments: str | None = None
    ) -> ParsedCall:
        if status == "unclosed":
            self._at = len(self._text)
        elif status == "malformed":
            end = self._finder.find(FUNCTION_END, self._at)
            self._at = end + len(FUNCTION_END) if end != -1 else len(self._text)
            self._close_outer()
        raw = self._text[self._begin : self._at]
        return ParsedCall(
            name, raw if arguments is None else arguments, raw, status, (self._begin, self._at)
        )

    def _close_outer(self) -> None:
        after = skip_space(self._text, self._at)
        if self._text.startswith(CLOSE, after):
            self._at = after + len(CLOSE)


def _types(tools: Tools, name: str) -> dict[str, frozenset[str]]:
    """Parameter -> JSON types that the schema of tool `name` allows."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            schema = function.get("parameters") or {}
            found = schema.get("properties") or {}
            return {key: frozenset(_allowed(value, schema, 8)) for key, value in found.items()}
    return {}


def _allowed(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    declared = schema.get("type")
    types = {declared} if isinstance(declared, str) else set(declared or ())
    for keyword in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(keyword) or ():
            types |= _allowed(part, root, depth - 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        definition = (root.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
        types |= _allowed(definition, root, depth - 1)
    return types


def _typed(value: str, types: frozenset[str] | None) -> Any:
    """`value` in the first of `types` that fits; else as text, for the tool to reject."""
    if not types or types == {"string"}:
        return value
    text = value.strip()
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "null" in types and text.lower() in ("null", "none"):
        return None
    try:
        loaded, end = read_value(text, 0)
    except NotJson:
        return value
    if end < len(text) or ("string" in types and _KINDS.get(type(loaded), "null") not in types):
        return value
    return loaded


PARSER = TextParser("qwen3_coder", OPEN, find_calls)
