"""The conversations of a program, which may be several: a tree of messages and its branches."""

from __future__ import annotations

from typing import Literal, get_args

from hermes_queue.wire.conversation import Message, Wire

BranchLabel = Literal["main", "sub_agent", "compaction", "side"]
"""main: the conversation about the task. sub_agent: one that an agent of it was given. compaction:
it goes on after the program has replaced its middle. side: titles, summaries and the like. Found by
what the calls say, so a label may be wrong. Which message is an answer depends on it."""

ALL: tuple[BranchLabel, ...] = get_args(BranchLabel)
TRAINED: tuple[BranchLabel, ...] = tuple(label for label in ALL if label != "side")
"""Branches of which a reward says something: the task does not depend on titles and summaries."""


class Node(Wire):
    """One message in the tree of a program's conversations, which holds each of them once."""

    parent: int | None = None
    """Index of the node before it; None at the beginning of a conversation."""
    message: Message
    turn: int | None = None
    """The turn that sampled it; None if the program wrote it."""


class Branch(Wire):
    """Turns of which each continues the one before it.

    A branch begins where a conversation does, where its history was rewritten, or where a prompt
    that had a reply got another one.
    """

    label: BranchLabel
    root: int
    """Index of its first turn. The `parent` of that turn is in the branch that this one left."""
    leaf: int
    """Index of its last turn."""
