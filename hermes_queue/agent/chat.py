"""The interface that the agent loop needs from a model server or a scripted agent."""

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
    """Differences between the conversation and what was sent; the loop adds them to the record."""
    waited_s: float = 0.0
    """Seconds of the call spent waiting for permission or on failed tries. They do not count as the
    agent's time: an endpoint's outage must not turn into a `time_limit` of the agent."""
    context_bound: bool = False
    """Whether the model's context, rather than the sampling parameters, limited the reply."""


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
            sampling: endpoint parameters, passed on unchanged.
            deadline: on the `time.monotonic()` clock, for everything including retries;
                `Reply.waited_s` is not counted.

        Raises:
            ContextLengthExceeded: the conversation does not fit the model.
            ModelError: the endpoint failed after its own retries.
            ModelConfigError: the request can never succeed as it is.
            TimeoutError: the deadline passed.
        """
