"""A program that calls the model, and the tree of its replies."""

from __future__ import annotations

import json
from typing import Any

from hermes_queue.agent.capture.calls import ModelCall
from hermes_queue.agent.capture.tree import ReplyTree
from hermes_queue.agent.chat import Reply
from hermes_queue.agent.loop import AgentResult
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.models import FunctionCall, Message, ToolCall, Turn

TASK = "Fix the bug in src/app.py."
SYSTEM = Message(role="system", content="You are an agent.")
USER = Message(role="user", content=f"Please solve this:\n{TASK}")
BASH = {"type": "function", "function": {"name": "bash", "parameters": {}}}


def say(text: str | None = None, *commands: str, reasoning: str | None = None, ids: str = "c"):
    calls = tuple(
        ToolCall(
            id=f"{ids}{i}",
            function=FunctionCall(name="bash", arguments=json.dumps({"command": command})),
        )
        for i, command in enumerate(commands)
    )
    return Message(role="assistant", content=text, tool_calls=calls, reasoning=reasoning)


def result(text: str, call: str = "c0") -> Message:
    return Message(role="tool", content=text, tool_call_id=call)


class Program:
    """A program that calls the model, and the tree of its replies."""

    def __init__(self, history: Any = "sampled") -> None:
        self.result = AgentResult()
        self.tree = ReplyTree(self.result, TASK, history=history)

    def call(self, *messages: Message, tools=(BASH,), **more: Any) -> ModelCall:
        path = "/v1/chat/completions"
        return ModelCall("chat", path, tuple(messages), tools=tuple(tools), **more)

    def place(self, *messages: Message, **more: Any):
        return self.tree.place(self.call(*messages, **more))

    def ask(self, reply: Message, *messages: Message, deliver: bool = True, **more: Any) -> int:
        call = self.call(*messages, **more)
        placement = self.tree.place(call)
        turn = self.answer(placement, call, reply)
        if deliver:
            self.tree.deliver(turn)
        return turn

    def answer(self, placement, call, reply: Message) -> int:
        """A reply in token mode: a token per message of the prompt, and one for the reply."""
        number = len(self.result.turns)
        held = placement.anchor
        prompt = (*held.prompt_ids, *held.completion_ids, 7) if held else (number,) * 3
        sampled = Turn(prompt_ids=prompt, completion_ids=(100 + number,), logprobs=(-0.5,))
        anchor = Anchor.of(sampled, [*placement.messages, reply], ended_by_token=True)
        return self.tree.add(placement, call, Reply(reply, sampled, anchor=anchor))

    @property
    def labels(self) -> list[str]:
        return [self.result.branches[turn.branch].label for turn in self.result.turns]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.result.events if event["event"] == kind]
