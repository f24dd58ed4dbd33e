"""The prompt names the workspace where the slot has it."""

from __future__ import annotations

from hermes_queue.models import Message
from workers.rollout import _with_workspace


def test_the_prompt_names_the_slots_own_workspace():
    messages = [
        Message(role="user", content="look into /workspace/a, not /workspaces or `/workspace`."),
        Message(role="assistant"),
    ]
    placed = _with_workspace(messages, "/workspace/3")
    wanted = "look into /workspace/3/a, not /workspaces or `/workspace/3`."
    assert [message.content for message in placed] == [wanted, None]


def test_where_it_lies_as_usual_nothing_changes():
    messages = [Message(role="user", content="/workspace")]
    assert _with_workspace(messages, "/workspace") is messages
