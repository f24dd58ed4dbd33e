"""The prompt names the workspace where the slot has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hermes_queue.errors import EnvBug
from hermes_queue.images.spec import ImageSpec
from hermes_queue.models import Message
from hermes_queue.sandbox.base import Slot, SlotSpec
from workers.rollout import _prompt, _with_workspace


def slot_at(workspace: str, spec: SlotSpec = SlotSpec()) -> Slot:  # noqa: B008 - frozen
    return Slot("s", "t", "b", workspace, spec)


def test_the_prompt_names_the_slots_own_workspace():
    messages = [
        Message(role="user", content="look into /workspace/a, not /workspaces or `/workspace`."),
        Message(role="assistant"),
    ]
    placed = _with_workspace(messages, slot_at("/workspace/3"))
    wanted = "look into /workspace/3/a, not /workspaces or `/workspace/3`."
    assert [message.content for message in placed] == [wanted, None]


def test_where_it_lies_as_usual_nothing_changes():
    messages = [Message(role="user", content="/workspace")]
    assert _with_workspace(messages, slot_at("/workspace")) is messages


def test_paths_of_a_slot_with_an_image_are_the_tasks_own():
    messages = [Message(role="user", content="/workspace")]
    spec = SlotSpec(image=ImageSpec(reference="task"))
    assert [m.content for m in _with_workspace(messages, slot_at("/app", spec))] == ["/workspace"]


@pytest.mark.parametrize(("given", "named"), [("Do it.", "str"), (["Do it."], "other elements")])
def test_a_prompt_that_is_no_list_of_messages_is_the_envs_fault(given: object, named: str):
    env: Any = SimpleNamespace(prompt=lambda item: given)
    with pytest.raises(EnvBug, match=f"must return a list of Message, not {named}"):
        _prompt(env, None, SimpleNamespace())  # type: ignore[arg-type]
