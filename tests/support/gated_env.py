"""An env of words, whose verifier waits for a file: `--env gated_env:ENV`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from envs.base import Verdict
from hermes_queue.errors import SandboxError
from hermes_queue.models import Message, ScoredTrajectory, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext


class GatedItem(BaseModel):
    instance_id: str
    right: str
    gate: str = "/"
    """The verifier waits until this path exists."""
    breaks: bool = False
    """The slot takes no recorded work."""


class GatedEnv:
    name: ClassVar[str] = "gated"
    version: ClassVar[str] = "1"
    tools: ClassVar[Sequence[str]] = ()
    Item = GatedItem

    def prompt(self, item: GatedItem) -> list[Message]:
        return [Message(role="user", content="Say a word.")]

    def spec(self, item: GatedItem, profile: str) -> SlotSpec:
        return SlotSpec(profile=profile)

    async def setup(self, item: GatedItem, context: SlotContext) -> None:
        """Leave the workspace empty."""

    async def verify(
        self, item: GatedItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        while not Path(item.gate).exists():
            await asyncio.sleep(0.02)
        said = (await context.read_file(f"{context.workspace}/said")).decode()
        return Verdict(float(said == item.right), report={"reason": f"said {said}"})

    def outcome(self, record: ScoredTrajectory) -> Mapping[str, Any]:
        return {"said": record.messages[-1].content}

    async def put_back(
        self, item: GatedItem, context: SlotContext, outcome: Mapping[str, Any]
    ) -> str:
        if item.breaks:
            raise SandboxError("the slot took nothing")
        await context.write_file(f"{context.workspace}/said", outcome["said"].encode())
        return str(outcome["said"])

    async def oracle(self, item: GatedItem, context: SlotContext) -> list[ToolCall]:
        return []

    def oracle_answer(self, item: GatedItem) -> str:
        return item.right

    def tamper(self, item: GatedItem) -> Mapping[str, Sequence[ToolCall | str]]:
        return {}


ENV = GatedEnv()
