"""A tiny env for producer tests: `--env sums_env:ENV`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext


class SumsItem(BaseModel):
    instance_id: str
    question: str = Field(min_length=1)
    answer: int
    cheats: tuple[str, ...] = ("guess", "peek")


class SumsEnv:
    name: ClassVar[str] = "sums"
    version: ClassVar[str] = "1"
    tools: ClassVar[Sequence[str]] = ("calculator",)
    Item = SumsItem

    def prompt(self, item: SumsItem) -> list[Message]:
        return [Message(role="user", content=item.question)]

    def spec(self, item: SumsItem, profile: str) -> SlotSpec:
        return SlotSpec(profile=profile)

    async def setup(self, item: SumsItem, context: SlotContext) -> None:
        raise NotImplementedError("jobs of this env are never run")

    verify = oracle = oracle_answer = setup

    def tamper(self, item: SumsItem) -> Mapping[str, Sequence[ToolCall | str]]:
        return {name: (f"the answer is {name}",) for name in item.cheats}


class WrongToolEnv(SumsEnv):
    tools: ClassVar[Sequence[str]] = ("teleport",)


ENV = SumsEnv()
WRONG_TOOL: Any = WrongToolEnv()
