"""The replies of one attempt: how they get on record, and what a later call continues.

A program's call says by its messages which reply it continues (`capture/tree/`). Our own loop knows
it: always the last one, also after another worker's turns. The rest is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.models import Message
from hermes_queue.telemetry.otel.timeline import Timeline

if TYPE_CHECKING:
    from hermes_queue.agent.loop import AgentResult


async def ask(
    chat: ChatClient,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    sampling: Mapping[str, Any],
    deadline: float,
    *,
    anchor: Anchor | None = None,
    timeline: Timeline | None = None,
    model: str = "",
) -> Reply:
    """See `ChatClient.complete`. Clients that give no anchors need not know the argument.

    An attempt that is traced notes the call in its `timeline`, with the `model` if it is another
    one than the agent's.
    """
    complete = chat.complete if anchor is None else partial(chat.complete, anchor=anchor)
    if timeline is None:
        return await complete(messages, tools, sampling, deadline)
    with timeline.model_call(messages, model) as noted:
        reply = await complete(messages, tools, sampling, deadline)
        noted.answered(reply)
    return reply


class Replies:
    """The turns of one `AgentResult`. On one event loop; nothing in it waits."""

    def __init__(self, result: AgentResult, *, ended_by_token: bool | None = None) -> None:
        """Continue after the turns in `result`, of which only the last can be continued by ids.

        `ended_by_token` is that of its anchor; None if it had none.
        """
        self._result = result
        self._ended_by_token: list[bool | None] = [None] * len(result.turns)
        if self._ended_by_token:
            self._ended_by_token[-1] = ended_by_token

    def ended_by_token(self, turn: int) -> bool | None:
        """See `Anchor`; None if the turn has none. -1 is the last turn."""
        return self._ended_by_token[turn] if self._ended_by_token else None

    def anchor(self, turn: int, messages: Sequence[Message]) -> Anchor | None:
        """What continues the reply of `turn`, token by token; None if it was not sampled by ids.

        `messages` is the conversation as it was sent for that turn, and the reply. -1 is the last
        turn, if there is one. Raises ValueError if the turn was sampled by ids, but has none.
        """
        ended = self.ended_by_token(turn)
        if ended is None:
            return None
        return Anchor.of(self._result.turns[turn], messages, ended_by_token=ended)

    def add(self, reply: Reply, events: Iterable[Mapping[str, Any]] = (), **fields: Any) -> int:
        """Record a reply, with `fields` of its turn and `events` before its own.

        Returns the index of the turn.
        """
        result, turn = self._result, len(self._result.turns)
        made = reply.turn.model_copy(update=fields) if fields else reply.turn
        result.turns.append(made)
        self._ended_by_token.append(reply.anchor.ended_by_token if reply.anchor else None)
        result.events += [{"turn": turn, **event} for event in (*events, *reply.events)]
        return turn
