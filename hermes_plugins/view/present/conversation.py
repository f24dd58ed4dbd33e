"""Messages of a record: pages of them, one whole, and an outline of all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict

from hermes_plugins.view.present.shapes import items, mapping, number, whole
from hermes_plugins.view.present.texts import WHOLE_BYTES, ShownText, text_of
from hermes_queue.terminal.escapes import known_label, label

CUT_BYTES = 4096
PAGE_BYTES = 256 << 10
CALLS_MOST = 64
CALLS_OF_ONE = 16 * CALLS_MOST
"""Tool calls of one message: in a page, and where it is shown alone."""
MESSAGES_MOST = 500
"""In one page."""
OUTLINE_MOST = 20_000
_PATHS_MOST = 20
"""Paths of a program's messages that are compared with its transcript."""
_ARGUMENTS_MOST = 256 << 10
"""Characters of a call's arguments that are parsed."""
_MAIN = ("command", "path", "query", "pattern", "expression", "url", "code", "input")
"""Arguments that say what a call does, the telling ones first."""
_FAILED = re.compile(r"\[(?:exit code (?!0\])|timed out\b|[a-z]+ failed: )|Invalid call of tool ")
_EXIT = re.compile(r"\[exit code (-?\d{1,9})[ \]]")
_LEFT_OUT = re.compile(r"\n\[\.\.\. \d+ bytes left out \.\.\.\]\n")


class ShownCall(TypedDict):
    """A tool call of an assistant message."""

    id: str
    name: str
    arguments: ShownText
    """The model's own text."""
    command: ShownText | None
    """The argument that says what the call does, if the arguments are a JSON object with one."""


class TurnFacts(TypedDict):
    """What is known of the model call that sampled a message."""

    n: int
    seconds: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    policy: str | None
    finish: str | None


class ShownMessage(TypedDict):
    """One message. What a record has beside the fields of a message is in `odd`, as JSON."""

    n: int
    role: str
    kind: str
    """`call`, `output`, `error` (an output that says that the call failed), or `text`."""
    content: ShownText
    reasoning: ShownText | None
    calls: list[ShownCall]
    more_calls: int
    """Calls that are left out here."""
    call_id: str | None
    name: str | None
    """The tool whose output it is, if the call is known."""
    exit: int | None
    """The exit code that an output begins with."""
    turn: TurnFacts | None
    odd: ShownText | None
    bytes: int
    flags: list[str]
    """`reasoning`, `error`, `cut` (the model saw an output in part), `odd`."""


class OutlineEntry(TypedDict):
    """A message in the outline."""

    n: int
    role: str
    kind: str
    bytes: int
    flags: list[str]


def messages(
    raw: Mapping[Any, Any],
    start: int = 0,
    cut_bytes: int = CUT_BYTES,
    total_bytes: int = PAGE_BYTES,
) -> list[ShownMessage]:
    """The messages from number `start` on, each text cut at `cut_bytes`.

    The page ends when its texts have `total_bytes` together; it has at least one message, unless
    `start` is behind the last one. The next page begins at the last `n` plus 1.
    """
    found: list[ShownMessage] = []
    taken = 0
    for each in islice(each_message(raw, start, cut_bytes), MESSAGES_MOST):
        found.append(each)
        taken += _shown_bytes(each)
        if taken >= total_bytes:
            break
    return found


def each_message(
    raw: Mapping[Any, Any], start: int = 0, cut_bytes: int | None = CUT_BYTES
) -> Iterator[ShownMessage]:
    """All messages from number `start` on, in time that grows with their number.

    Each text is cut at `cut_bytes`; None = they are shown as `message` shows them.
    """
    given = all_messages(raw)
    turns = _Turns(raw, given)
    cut, calls = (WHOLE_BYTES, CALLS_OF_ONE) if cut_bytes is None else (cut_bytes, CALLS_MOST)
    for n in range(max(0, start), len(given)):
        yield _message(given, n, turns, cut, calls)


def message(raw: Mapping[Any, Any], n: int) -> ShownMessage | None:
    """Message `n` with its texts whole, up to `texts.WHOLE_BYTES` each; None if there is none."""
    given = all_messages(raw)
    if not 0 <= n < len(given):
        return None
    return _message(given, n, _Turns(raw, given), WHOLE_BYTES, CALLS_OF_ONE)


def outline(raw: Mapping[Any, Any]) -> list[OutlineEntry]:
    """All messages without their texts, at most `OUTLINE_MOST`."""
    given = all_messages(raw)[:OUTLINE_MOST]
    return [
        {
            "n": n,
            "role": _role(each),
            "kind": _kind(each),
            "bytes": _size(each),
            "flags": _flags(each),
        }
        for n, each in enumerate(given)
    ]


def all_messages(raw: Mapping[Any, Any]) -> Sequence[Any]:
    """The transcript of a record, as it is: a program's is its main conversation."""
    given = raw.get("messages")
    if given is None:
        return ()
    return given if isinstance(given, list | tuple) else (given,)


def turn_of_messages(raw: Mapping[Any, Any]) -> dict[int, int]:
    """The number of the turn that sampled a message, by the message's number."""
    return _Turns(raw, all_messages(raw)).of_message


def arguments_of(call: object) -> Mapping[Any, Any] | None:
    """The arguments of a tool call, if they are a JSON object of a moderate size."""
    text = mapping(mapping(call).get("function")).get("arguments")
    if isinstance(text, Mapping):
        return text
    if not isinstance(text, str) or len(text) > _ARGUMENTS_MOST:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def main_argument(arguments: Mapping[Any, Any]) -> object:
    """The argument that says what a call does; else the first text, else the first one."""
    for name in _MAIN:
        if isinstance(arguments.get(name), str):
            return arguments[name]
    texts = (value for value in arguments.values() if isinstance(value, str))
    return next(texts, next(iter(arguments.values()), None))


class _Turns:
    """Which turn sampled which message.

    Turns are in the order of the replies. Replies that were part of the prompt have no turn, so
    both are counted from the end; a program's nodes say it themselves, and without them nobody.
    """

    def __init__(self, raw: Mapping[Any, Any], given: Sequence[Any]) -> None:
        self._turns = items(raw.get("turns"))
        nodes = items(raw.get("nodes"))
        is_tree = bool(nodes) or bool(items(raw.get("branches")))
        self.of_message = _of_nodes(nodes, given) if is_tree else self._from_the_end(given)

    def _from_the_end(self, given: Sequence[Any]) -> dict[int, int]:
        replies = [n for n, each in enumerate(given) if mapping(each).get("role") == "assistant"]
        pairs = zip(reversed(replies), reversed(range(len(self._turns))), strict=False)
        return dict(pairs)

    def facts(self, n: int) -> TurnFacts | None:
        index = self.of_message.get(n)
        if index is None or not 0 <= index < len(self._turns):
            return None
        turn = mapping(self._turns[index])
        usage = mapping(turn.get("usage"))
        seconds = number(turn.get("latency_s"))
        return {
            "n": index,
            "seconds": None if seconds is None else float(seconds),
            "prompt_tokens": whole(usage.get("prompt_tokens")),
            "completion_tokens": whole(usage.get("completion_tokens")),
            "policy": known_label(turn.get("policy_version")),
            "finish": known_label(turn.get("finish_reason")),
        }


def _of_nodes(nodes: Sequence[Any], given: Sequence[Any]) -> dict[int, int]:
    """From the path of nodes that says what the transcript says; {} if it cannot be found.

    Of several, the last one: a program may have had the same conversation twice.
    """
    said = [_said(each) for each in given]
    ends = (
        place
        for place in range(len(nodes) - 1, -1, -1)
        if said and _said(mapping(nodes[place]).get("message")) == said[-1]
    )
    for place in islice(ends, _PATHS_MOST):
        found = _turns_on_path(nodes, place, said)
        if found is not None:
            return found
    return {}


def _turns_on_path(
    nodes: Sequence[Any], place: int | None, said: Sequence[tuple[str, ...]]
) -> dict[int, int] | None:
    """The turns of the messages on the path that ends at a node; None if they say other things.

    Replies that the program wrote itself may be in the tree alone.
    """
    found: dict[int, int] = {}
    left = len(said)
    while place is not None:
        node = mapping(nodes[place])
        turn, above = whole(node.get("turn")), whole(node.get("parent"))
        own = _said(node.get("message"))
        if left and own == said[left - 1]:
            left -= 1
            if turn is not None:
                found[left] = turn
        elif turn is not None or own[0] != "assistant":
            return None
        place = above if above is not None and 0 <= above < place else None
    return found if not left else None


def _said(each: object) -> tuple[str, ...]:
    """What a message says, as far as it is text: equal in a transcript and in its node."""
    known = mapping(each)
    parts = [known.get("role"), known.get("content"), known.get("reasoning")]
    for call in items(known.get("tool_calls")):
        function = mapping(mapping(call).get("function"))
        parts += [function.get("name"), function.get("arguments")]
    return tuple(part if isinstance(part, str) else "" for part in parts)


def _message(
    given: Sequence[Any], n: int, turns: _Turns, cut_bytes: int, calls_most: int
) -> ShownMessage:
    each = mapping(given[n])
    calls = items(each.get("tool_calls"))
    content = each.get("content") if each else given[n]
    reasoning = each.get("reasoning")
    return {
        "n": n,
        "role": _role(given[n]),
        "kind": _kind(given[n]),
        "content": text_of(content, cut_bytes),
        "reasoning": None if reasoning in (None, "") else text_of(reasoning, cut_bytes),
        "calls": [_call(call, cut_bytes) for call in calls[:calls_most]],
        "more_calls": max(0, len(calls) - calls_most),
        "call_id": known_label(each.get("tool_call_id")),
        "name": _tool(given, n),
        "exit": _exit(each),
        "turn": turns.facts(n),
        "odd": text_of(odd, cut_bytes) if (odd := _odd(each)) else None,
        "bytes": _size(given[n]),
        "flags": _flags(given[n]),
    }


def _call(call: object, cut_bytes: int) -> ShownCall:
    function = mapping(mapping(call).get("function"))
    known = arguments_of(call)
    main = main_argument(known) if known else None
    return {
        "id": label(mapping(call).get("id")),
        "name": label(function.get("name")),
        "arguments": text_of(function.get("arguments") if function else call, cut_bytes),
        "command": text_of(main, cut_bytes) if isinstance(main, str) else None,
    }


def _tool(given: Sequence[Any], n: int) -> str | None:
    """The tool that message `n` answers: calls are answered behind the reply that made them."""
    wanted = mapping(given[n]).get("tool_call_id")
    if not isinstance(wanted, str):
        return None
    for above in range(n - 1, max(-1, n - 1 - CALLS_MOST), -1):
        calls = items(mapping(given[above]).get("tool_calls"))
        for call in calls[:CALLS_MOST]:
            if mapping(call).get("id") == wanted:
                return label(mapping(mapping(call).get("function")).get("name"))
        if calls:
            return None
    return None


_FIELDS = {"role", "content", "reasoning", "tool_calls", "tool_call_id"}


def _odd(each: Mapping[Any, Any]) -> dict[Any, Any]:
    odd = {name: value for name, value in each.items() if name not in _FIELDS}
    calls = each.get("tool_calls")
    if calls and not isinstance(calls, list | tuple):
        odd["tool_calls"] = calls
    return odd


def _role(each: object) -> str:
    return label(mapping(each).get("role"), 40)


def _kind(each: object) -> str:
    role = mapping(each).get("role")
    if role == "tool":
        content = mapping(each).get("content")
        failed = isinstance(content, str) and _FAILED.match(content)
        return "error" if failed else "output"
    return "call" if mapping(each).get("tool_calls") else "text"


def _flags(each: object) -> list[str]:
    known = mapping(each)
    content = known.get("content")
    found = ["reasoning"] if known.get("reasoning") else []
    if _kind(each) == "error":
        found.append("error")
    if known.get("role") == "tool" and isinstance(content, str) and _LEFT_OUT.search(content):
        found.append("cut")
    if not known or _odd(known):
        found.append("odd")
    return found


def _exit(each: Mapping[Any, Any]) -> int | None:
    content = each.get("content")
    if each.get("role") != "tool" or not isinstance(content, str):
        return None
    found = _EXIT.match(content)
    return int(found[1]) if found else None


def _size(each: object) -> int:
    """Bytes of the texts of a message."""
    known = mapping(each)
    total = _bytes(known.get("content")) + _bytes(known.get("reasoning"))
    for call in items(known.get("tool_calls")):
        function = mapping(mapping(call).get("function"))
        total += _bytes(function.get("name")) + _bytes(function.get("arguments"))
    return total


def _bytes(value: object) -> int:
    if not isinstance(value, str):
        return 0
    return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))


def _shown_bytes(shown: ShownMessage) -> int:
    texts = [shown["content"], shown["reasoning"], shown["odd"]]
    texts += [text for call in shown["calls"] for text in (call["arguments"], call["command"])]
    return 100 + sum(len(text["text"]) for text in texts if text)
