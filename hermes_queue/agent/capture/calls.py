"""One model call of a program in terms that all APIs share, its answer, and who gives it.

A dialect (`dialects/`) turns an HTTP body into a `ModelCall` and an `Answer` into JSON or a
stream. The server (`server.py`) knows HTTP, the key and the size limits. The session decides
whether a call may be made, makes it and records it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hermes_queue.models import Message, Usage

RefusalKind = Literal["stopped", "bad_call", "context_length", "upstream", "closed"]
"""stopped: a limit of the job ends the program. bad_call: the body is invalid or asks for
something that is not offered. context_length: the model refused the prompt as too long. upstream:
the model server failed for good. closed: the attempt is over."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """What a program asks of the model."""

    dialect: str
    """`chat`, `responses` or `messages`."""
    path: str
    messages: tuple[Message, ...]
    """The conversation with roles system, user, assistant and tool; parts joined to text."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """OpenAI function schemas, as sent; server-side tools are left out, with an event."""
    requested_model: str | None = None
    max_tokens: int | None = None
    streamed: bool = False
    retry_count: int = 0
    """As the SDK's header says (`x-stainless-retry-count`); a hint."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """Headers by which some programs name the session or sub-agent that calls."""
    events: tuple[Mapping[str, Any], ...] = ()
    """What the dialect changed: `{"event": kind, ...}`. A call repeats those of the history it
    sends again, so a record keeps each distinct one once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's reply to one call."""

    turn: int
    """Index of the turn in the record."""
    message: Message
    finish_reason: str
    """As in Chat Completions: `stop`, `tool_calls` or `length`."""
    usage: Usage


class Refused(Exception):
    """The call is not answered; the dialect says so in its own words."""

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Session(Protocol):
    """The calls of one attempt. On one event loop; several calls may be open at once."""

    @property
    def key(self) -> str:
        """The credential that every request must carry; compared in constant time."""
        ...

    @property
    def model(self) -> str:
        """Name of the model for `GET /v1/models`."""
        ...

    async def answer(self, call: ModelCall) -> Answer:
        """Answer a call: a new sample, or the undelivered reply of an equal call before it.

        Calls that differ only in `streamed`, `retry_count`, `hints` and `events` are equal. Being
        cancelled, because the client went away, loses nothing: the call goes on, and its reply is
        kept for an equal call.

        Raises:
            Refused: the program gets no reply.
        """
        ...

    def delivered(self, answer: Answer) -> None:
        """The last byte of the reply was written and drained, and the peer did not reset."""

    def undelivered(self, answer: Answer) -> None:
        """The client was gone before that; the next equal call gets this reply.

        Changes nothing if another call has delivered the same reply.
        """

    async def count_tokens(self, call: ModelCall) -> int:
        """Tokens of the prompt, by the server's tokenizer. Raises Refused."""
        ...

    def rejected(self, method: str, path: str, status: int) -> None:
        """Count a request that was no model call: unknown path, wrong key, invalid body."""

    def broken(self, error: Exception) -> None:
        """The endpoint itself failed: the attempt ends with `env_bug` and this traceback.

        Called once; the server answers 500 and refuses all calls from then on.
        """
