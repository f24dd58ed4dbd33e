"""The contract of a dialect: functions without state between HTTP bodies and model calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.agent.capture.calls import Answer, ModelCall, Refused
from hermes_queue.models import Message

PIECE_CHARS = 4096
"""Longest text in one event of a stream: some clients limit the length of a line."""
_STATUS = {"bad_call": 400, "context_length": 400, "upstream": 503}
"""Of refusals that are no end of the trajectory."""

Previous = Callable[[str], Sequence[Message] | None]
"""The conversation up to and including a stored response, by its id; None if there is none."""


class BadCall(Refused):
    """The body is invalid, or asks for something that is not offered."""

    def __init__(self, place: str, problem: str) -> None:
        """`place` is the field, as in `messages[2].content`; "" is the whole body."""
        super().__init__("bad_call", f"{place}: {problem}" if place else problem)
        self.place = place


@dataclass(frozen=True, slots=True)
class Head:
    """What a request says outside its body."""

    path: str
    hints: Mapping[str, str] = field(default_factory=dict)
    retry_count: int = 0
    now_s: int = 0
    """Unix time; answers carry it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call, and how its answer is to look."""

    call: ModelCall
    now_s: int = 0
    usage_in_stream: bool = False
    reasoning: bool = True
    """Whether the answer shows reasoning."""
    sealed_reasoning: bool = False
    """Whether the answer carries reasoning in the field that clients send back unread."""
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a tool that the model sees -> namespace and name that the client knows."""
    free_form: frozenset[str] = frozenset()
    """Names of tools whose calls carry a text instead of arguments."""
    continued: tuple[Message, ...] | None = None
    """The conversation that a later call may continue by the answer's id; None: none will."""

    def model(self, default: str) -> str:
        """The name that the answer gives to the model: the one that was asked for."""
        return self.call.requested_model or default


@dataclass(frozen=True, slots=True)
class Problem:
    """A request that gets an error instead of an answer."""

    status: int
    message: str
    code: str | None = None
    place: str | None = None
    """Field of the body."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API. Its functions are pure, and `read` raises nothing but `BadCall`."""

    name: str
    """Value of `ModelCall.dialect`."""
    read: Callable[[Mapping[str, Any], Head, Previous], Asked]
    whole: Callable[[Asked, Answer, str], Mapping[str, Any]]
    """The answer as JSON; the text is the model's name if the call named none."""
    stream: Callable[[Asked, Answer, str], Iterator[bytes]]
    """The answer as server-sent events; the last one ends the client's turn."""
    problem: Callable[[Problem], Mapping[str, Any]]
    """An error in the API's own shape."""
    waiting: bytes
    """Keeps a stream alive that has nothing to say yet.

    A comment without the blank line after it, where the API has no event for this: clients were
    seen to take the blank line for an empty event.
    """
    too_long: Callable[[str], str] = lambda message: message
    """A refusal for the context's length in the words by which clients know it."""
    too_long_in_stream: Callable[[Asked, str, str], Iterator[bytes]] | None = None
    """The same as a stream, with the message and the model's name, if clients expect it there."""


def problem_of(refused: Refused, dialect: Dialect, refusal_status: int) -> Problem:
    """A refusal as the dialect's error; `refusal_status` is that of a trajectory that is over."""
    status = _STATUS.get(refused.kind, refusal_status)
    message = str(refused)
    if refused.kind == "context_length":
        return Problem(status, dialect.too_long(message), code="context_length_exceeded")
    if isinstance(refused, BadCall):
        return Problem(status, message, place=refused.place or None)
    code = {"stopped": "trajectory_stopped", "closed": "trajectory_stopped"}.get(refused.kind)
    return Problem(status, message, code=code)


def finish_reason(answer: Answer) -> str:
    """`length`, `tool_calls` or `stop`, whatever the server calls it."""
    if answer.finish_reason == "length":
        return "length"
    return "tool_calls" if answer.message.tool_calls else "stop"


def compact_json(value: Any) -> bytes:
    """JSON in ASCII: no client can take a character in it for the end of a line."""
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    line = b"" if name is None else f"event: {name}\n".encode()
    return b"%bdata: %b\n\n" % (line, compact_json(value))


def pieces(text: str) -> Iterator[str]:
    """The text in parts of at most `PIECE_CHARS`; an empty text has none."""
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]
