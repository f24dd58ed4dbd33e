"""The one method the agent loop needs from a model server, or from a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_queue.models import Message, Turn


@dataclass(frozen=True, slots=True)
class Reply:
    """One completion: the assistant's message and the record of how it was sampled."""

    message: Message
    turn: Turn
    events: tuple[Mapping[str, Any], ...] = ()
    """Where what was sent differs from the conversation; the loop keeps them on the record."""
    waited_s: float = 0.0
    """Of the call, the time that was spent waiting for leave, or in tries that failed: an endpoint
    that was unwell for a while must not become an agent that was too slow."""
    context_bound: bool = False
    """Whether the model's context bounded the reply, more than the sampling did."""


class ChatClient(Protocol):
    """An OpenAI-compatible chat endpoint, or a scripted agent."""

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
    ) -> Reply:
        """Sample the assistant's next message.

        Args:
            messages: the whole conversation so far.
            tools: OpenAI tool schemas.
            sampling: endpoint parameters, passed on as they are.
            deadline: on the `time.monotonic()` clock, for everything including retries;
                `Reply.waited_s` is not counted.

        Raises:
            ContextLengthExceeded: the conversation does not fit the model.
            ModelError: the endpoint failed after its own retries.
            ModelConfigError: the request can never succeed as it is.
            TimeoutError: the deadline passed.
        """
        ...
