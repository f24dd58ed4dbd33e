"""The task that the tiny model knows: `--env trail_env:ENV`.

Notes in the workspace, each naming the next; the last one tells a word. Several turns with a tool
call each, and an answer that only the sandbox can give.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field
from tiny_model import NAMES, WORDS

from envs.base import Verdict
from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools.base import make_call


class TrailItem(BaseModel):
    instance_id: str
    trail: tuple[str, ...] = Field(min_length=1)
    word: str


def row(number: int) -> dict[str, Any]:
    """One of the trails, of three to five notes."""
    rng = random.Random(number)
    trail = rng.sample(NAMES, rng.randint(3, 5))
    return {"instance_id": f"trail-{number}", "trail": trail, "word": rng.choice(WORDS)}


class TrailEnv:
    name: ClassVar[str] = "trail"
    version: ClassVar[str] = "1"
    tools: ClassVar[Sequence[str]] = ("terminal",)
    Item = TrailItem

    def prompt(self, item: TrailItem) -> list[Message]:
        text = f"Follow the trail of notes that begins with {item.trail[0]}."
        return [Message(role="user", content=text)]

    def spec(self, item: TrailItem, profile: str) -> SlotSpec:
        return SlotSpec(profile=profile)

    async def setup(self, item: TrailItem, context: SlotContext) -> None:
        notes = {
            note: f"next {follower}\n"
            for note, follower in zip(item.trail, item.trail[1:], strict=False)
        }
        notes[item.trail[-1]] = f"the end, and the word is {item.word}\n"
        for note, text in notes.items():
            await context.write_file(f"{context.workspace}/{note}", text.encode())

    async def verify(
        self, item: TrailItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        answers = [m.content for m in transcript if m.role == "assistant" and m.content]
        return Verdict(score=float(bool(answers) and answers[-1] == f"The word is {item.word}"))

    async def oracle(self, item: TrailItem, context: SlotContext) -> list[ToolCall]:
        return [
            make_call(f"oracle_{n}", "terminal", command=f"cat {name}")
            for n, name in enumerate(item.trail)
        ]

    def oracle_answer(self, item: TrailItem) -> str:
        return f"The word is {item.word}"

    def tamper(self, item: TrailItem) -> Mapping[str, Sequence[ToolCall | str]]:
        return {}


ENV = TrailEnv()
