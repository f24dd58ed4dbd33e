"""Mistral: `[TOOL_CALLS]` followed by one of two formats.

A JSON list `[{"name": ..., "arguments": {...}}, ...]` (tokenizers before version 11), or
`NAME[ARGS]{...}`, also without `[ARGS]` and with `[CALL_ID]...` before it. In the second format
the tag is repeated for each call.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hermes_queue.agent.parsers.base import (
    MAX_FAILED,
    CallStatus,
    NotJson,
    ParsedCall,
    TextParser,
    Tools,
    call_of,
    failed_call,
    find_or_end,
    read_object,
    skip_space,
)

TAG = "[TOOL_CALLS]"

_NAMED = re.compile(r"([\w.\-]{1,200})[ \t]*(?:\[CALL_ID\][\w\-]{1,99})?(?:\[ARGS\])?[ \t\r\n]*")


def find_calls(text: str, start: int, tools: Tools) -> list[ParsedCall]:
    """The calls in `text` from `start` on."""
    calls: list[ParsedCall] = []
    failures, begin = 0, text.find(TAG, start)
    while begin != -1 and failures < MAX_FAILED:
        body = skip_space(text, begin + len(TAG))
        read = _listed if text.startswith("[", body) else _named
        calls += read(text, begin, body)
        failures += calls[-1].status != "ok"
        begin = text.find(TAG, calls[-1].span[1])
    return calls


def _named(text: str, begin: int, body: int) -> list[ParsedCall]:
    """The call of the tag at `begin`, whose name is at `body`."""
    match = _NAMED.match(text, body)
    if match is None:
        cut = body == len(text)
        return [_failed(text, begin, body, "unclosed" if cut else "malformed")]
    try:
        _, end = read_object(text, match.end())
    except NotJson as error:
        failed = _failed(text, begin, body, "unclosed" if error.cut else "invalid_json")
        return [replace(failed, name=match.group(1))]
    arguments = text[match.end() : end]
    return [ParsedCall(match.group(1), arguments, text[body:end], "ok", (begin, end))]


def _listed(text: str, begin: int, body: int) -> list[ParsedCall]:
    """Calls in a JSON list; the last one may be a failed one."""
    calls: list[ParsedCall] = []
    at = skip_space(text, body + 1)
    while True:
        try:
            members, end = read_object(text, at)
        except NotJson as error:
            return [*calls, _failed(text, begin, at, "unclosed" if error.cut else "invalid_json")]
        after = skip_space(text, end)
        closed = text.startswith("]", after)
        calls.append(call_of(members, text[at:end], (begin, after + 1 if closed else end)))
        if not text.startswith(",", after):
            return calls
        begin, at = end, skip_space(text, after + 1)


def _failed(text: str, begin: int, body: int, status: CallStatus) -> ParsedCall:
    """A failed call, which ends at the next tag, or with the text."""
    last = find_or_end(text, TAG, body)
    if status == "unclosed" and last < len(text):
        status = "invalid_json"
    return failed_call(text[body:last].strip(), status, (begin, last))


PARSER = TextParser("mistral", TAG, find_calls)
