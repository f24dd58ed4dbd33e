"""An env for the examples: the score of an answer is the share of vowels in it.

    --env vowels:ENV

Even a model that knows nothing gets different scores, and learns to get better ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel

from envs.base import Verdict
from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext


class VowelsItem(BaseModel):
    """A row."""

    instance_id: str
    question: str = "Say aah."


class VowelsEnv:
    """The rules: no tools, one answer."""

    name: ClassVar[str] = "vowels"
    version: ClassVar[str] = "1"
    tools: ClassVar[Sequence[str]] = ()
    Item = VowelsItem

    def prompt(self, item: VowelsItem) -> list[Message]:
        return [Message(role="user", content=item.question)]

    def spec(self, item: VowelsItem, profile: str) -> SlotSpec:
        return SlotSpec(profile=profile)

    async def setup(self, item: VowelsItem, context: SlotContext) -> None:
        """The slot stays empty."""

    async def verify(
        self, item: VowelsItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        answer = (transcript[-1].content or "").lower()
        return Verdict(score=sum(map(answer.count, "aeiou")) / max(1, len(answer)))

    async def oracle(self, item: VowelsItem, context: SlotContext) -> list[ToolCall]:
        return []

    def oracle_answer(self, item: VowelsItem) -> str:
        return "aah"

    def tamper(self, item: VowelsItem) -> Mapping[str, Sequence[ToolCall | str]]:
        return {}


ENV = VowelsEnv()
