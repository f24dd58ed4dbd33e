"""A sampled reply that later prompts may continue, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_queue.models import Message, Turn


@dataclass(frozen=True, slots=True)
class Anchor:
    """The tokens of a conversation up to the end of one sampled reply.

    A value: calls of one trajectory may continue the same anchor, also at the same time.
    """

    messages: tuple[Message, ...]
    """The conversation as it was sent, and the reply as its last message."""
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    ended_by_token: bool
    """Whether the last of `completion_ids` ended the turn (not a stop string, not the length)."""

    @classmethod
    def of(
        cls, turn: Turn, messages: Sequence[Message], *, ended_by_token: bool | None = None
    ) -> Anchor:
        """The anchor of a recorded turn.

        `messages` is the conversation as it was sent, and the reply. `ended_by_token` is that of
        the anchor which the reply came with; None if it was not kept. It is then found by the
        reason why the reply ended, and taken as False if that could have been a stop string, which
        writes the template's end of turn once more.

        Raises ValueError if the turn has no ids.
        """
        if turn.prompt_ids is None or turn.completion_ids is None:
            raise ValueError("only a turn with token ids can be continued")
        if ended_by_token is None:
            stopped = turn.finish_reason == "stop" and not turn.sampling.get("stop")
            ended_by_token = stopped and len(turn.completion_ids) > 0
        return cls(tuple(messages), turn.prompt_ids, turn.completion_ids, ended_by_token)
