"""Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, also of Qwen 2.5 and 3."""

from __future__ import annotations

from hermes_queue.agent.parsers.base import (
    MAX_FAILED,
    CallStatus,
    Finder,
    Member,
    NotJson,
    ParsedCall,
    TextParser,
    Tools,
    call_of,
    failed_call,
    read_object,
    skip_space,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def find_calls(text: str, start: int, tools: Tools) -> list[ParsedCall]:
    """The calls in `text` from `start` on.

    A call ends where its JSON ends, not at the first closing tag: arguments may contain such
    tags. A missing closing tag is accepted if the JSON is complete, since servers cut it off as
    a stop string.

    This is linear although JSON is read again at each tag: reading continues past a tag only
    inside a string, and where two readings overlap, one is inside a string exactly when the
    other is not.
    """
    finder, calls, failures = Finder(text), list[ParsedCall](), 0
    begin = finder.find(OPEN, start)
    while begin != -1 and failures < MAX_FAILED:
        body = skip_space(text, begin + len(OPEN))
        try:
            members, end = read_object(text, body)
        except NotJson as error:
            failures += 1
            close = finder.find(CLOSE, body)
            calls.append(_unreadable(text, begin, body, close, cut=error.cut))
        else:
            calls.append(_complete(text, begin, body, end, members, finder))
        begin = finder.find(OPEN, calls[-1].span[1])
    return calls


def _unreadable(text: str, begin: int, body: int, close: int, *, cut: bool) -> ParsedCall:
    """A call with invalid JSON, up to the closing tag: another opening tag may be text in it."""
    status: CallStatus = "unclosed" if cut and close == -1 else "invalid_json"
    stop, last = (len(text), len(text)) if close == -1 else (close, close + len(CLOSE))
    return failed_call(text[body:stop].strip(), status, (begin, last))


def _complete(
    text: str, begin: int, body: int, end: int, members: dict[str, Member], finder: Finder
) -> ParsedCall:
    """A call whose object ends at `end`."""
    after = skip_space(text, end)
    if text.startswith(CLOSE, after):
        return call_of(members, text[body:end], (begin, after + len(CLOSE)))
    if after == len(text) or text.startswith(OPEN, after):
        return call_of(members, text[body:end], (begin, after))
    # There is text between the object and the tag, most often an extra brace.
    close, following = finder.find(CLOSE, after), finder.find(OPEN, after)
    if close != -1 and not -1 < following < close:
        stop, last = close, close + len(CLOSE)
    else:
        stop = last = following if following != -1 else len(text)
    return failed_call(text[body:stop].strip(), "invalid_json", (begin, last))


PARSER = TextParser("hermes", OPEN, find_calls)
