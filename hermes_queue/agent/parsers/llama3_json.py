"""Llama 3.1 and later: `{"name": ..., "parameters": {...}}` as the reply's text.

Optionally after `<|python_tag|>`, several of them separated by `;` or newlines.
"""

from __future__ import annotations

import re

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

TAG = "<|python_tag|>"

_CANDIDATE = re.compile(
    r'\{[ \t\r\n]*"(?:name|type|parameters|arguments)"|' + re.escape(TAG), re.ASCII
)
_NAMES = ("parameters", "arguments")


def find_calls(text: str, start: int, tools: Tools) -> list[ParsedCall]:
    """The calls in `text` from `start` on.

    An object with a name and parameters is a call. Invalid JSON counts as a failed call only
    where a call must be, at the beginning or after the tag; elsewhere it is text.
    """
    calls: list[ParsedCall] = []
    at, failures, first = start, 0, skip_space(text, start)
    while failures < MAX_FAILED:
        match = _CANDIDATE.search(text, at)
        if match is None:
            break
        begin = body = match.start()
        if tagged := text.startswith(TAG, begin):
            body = skip_space(text, begin + len(TAG))
        try:
            members, end = read_object(text, body)
        except NotJson as error:
            failures += 1
            at = match.end()
            if tagged or begin == first:
                status: CallStatus = "unclosed" if error.cut else "invalid_json"
                if tagged and not text.startswith("{", body) and not error.cut:
                    status = "malformed"
                last = find_or_end(text, TAG, match.end())  # a failed call ends with the next
                calls.append(failed_call(text[body:last].strip(), status, (begin, last)))
                at = last
            continue
        at = end
        if tagged or ("name" in members and any(name in members for name in _NAMES)):
            at = _after_separator(text, end)
            calls.append(call_of(members, text[body:end], (begin, at), names=_NAMES))
    return calls


def _after_separator(text: str, end: int) -> int:
    at = skip_space(text, end)
    return at + 1 if text.startswith(";", at) else end


PARSER = TextParser("llama3_json", TAG, find_calls)
