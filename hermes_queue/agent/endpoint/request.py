"""One call of a model server, from the conversation to the body that is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.agent.tokens.continuation import PartialReply
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import Message

_RESERVED = frozenset(
    {"model", "messages", "tools", "stream", "n"}
    # These would make a turn something other than one sample after the recorded prompt.
    | {"prompt", "input_ids", "echo", "best_of", "use_beam_search"}
)
_OWN_CALL = re.compile(r"call_(\d{1,9})_\d+")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A call as it is sent, the same in all its tries. Calls share nothing of it."""

    messages: tuple[Message, ...]
    tools: Sequence[Mapping[str, Any]]
    anchor: Anchor | None
    body: Mapping[str, Any]
    number: int
    """Number of the call in its trajectory, of which the ids are made that tool calls lack."""
    first: bool
    """Whether the server has not yet answered a call of the trajectory."""
    so_far: PartialReply = field(default_factory=PartialReply)
    """Tokens of a try that the server aborted, from which the next one goes on."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Differences between the conversation and what is sent."""


def check_sampling(sampling: Mapping[str, Any]) -> None:
    """Raise ModelConfigError if the parameters would change what is asked."""
    if reserved := sorted(_RESERVED & sampling.keys()):
        raise ModelConfigError(f"sampling must not set {', '.join(reserved)}")


def first_number(messages: Sequence[Message]) -> int:
    """The number of a new client's first call: ids of calls in `messages` are not given again."""
    numbers = [
        int(found[1])
        for message in messages
        for call in message.tool_calls
        if (found := _OWN_CALL.fullmatch(call.id))
    ]
    return max(numbers, default=-1) + 1
