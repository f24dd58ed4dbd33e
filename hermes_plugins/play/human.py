"""A person at a terminal: only `hermes-queue play` has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.parameters import AgentParams, read_params
from hermes_queue.agent.registry import Agent, AgentScript
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import AgentSpec, Message, Turn
from hermes_queue.settings import ModelSettings

NextMessage = Callable[[], Message]
"""Returns the message that the person has entered for this turn."""

next_message: ContextVar[NextMessage | None] = ContextVar("next_message", default=None)
"""Set around the one trajectory that a person plays; nowhere else."""


class Human:
    """Passes a person's messages on. They are entered before the turn, which costs no time."""

    def __init__(self, take: NextMessage) -> None:
        self._take = take

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
        *,
        anchor: Anchor | None = None,
    ) -> Reply:
        """The person's message."""
        message = self._take()
        finish = "tool_calls" if message.tool_calls else "stop"
        return Reply(message, Turn(server="human", finish_reason=finish))


def make(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> ChatClient:
    """The agent. Raises ModelConfigError where there is no person, as in a worker."""
    read_params(AgentParams, spec.params, "agent human")
    take = next_message.get()
    if take is None:
        raise ModelConfigError("agent human needs a terminal: use `hermes-queue play`")
    return Human(take)


AGENT = Agent(make, not_in_runs="a run has no terminal; use `hermes-queue play`")
