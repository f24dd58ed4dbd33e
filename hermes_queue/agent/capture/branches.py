"""What a session needs of the tree of replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hermes_queue.agent.capture.calls import ModelCall
from hermes_queue.agent.chat import Reply
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.models import Message


class Place(Protocol):
    """Where a call continues the tree."""

    @property
    def branch(self) -> str:
        """`main`, `sub_agent`, `compaction` or `side`."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation that is sent to the model."""
        ...

    @property
    def anchor(self) -> Anchor | None:
        """The reply whose tokens are continued."""
        ...

    @property
    def new_messages(self) -> Sequence[Message]:
        """Those that the tree does not hold yet."""
        ...


class Tree(Protocol):
    """All conversations of one attempt. Nothing in it waits."""

    def place(self, call: ModelCall) -> Place:
        """Where `call` belongs; changes nothing. Raises ValueError if it cannot be recorded."""
        ...

    def add(self, place: Any, call: ModelCall, reply: Reply) -> int:
        """Record a reply, not delivered yet, and all events; returns the index of its turn."""
        ...

    def deliver(self, turn: int) -> None:
        """The program has the reply of this turn."""

    def main_path(self) -> list[Message]:
        """The main conversation up to its last delivered reply."""
        ...

    def main_tools(self) -> tuple[dict[str, Any], ...]:
        """The tools of the main conversation, as the program sent them."""
        ...
