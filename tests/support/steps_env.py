"""An env whose agent adds numbers to a file: each effect of a turn shows in it, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel

from envs.base import Environment, Verdict
from hermes_queue.errors import EnvInfraError
from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools.base import make_call

CALL = '<tool_call>{"name":"terminal","arguments":{"command":"echo %d >>log"}}</tool_call>'
"""A turn as a model writes it."""


class StepsItem(BaseModel):
    instance_id: str = "steps"
    turns: int


class Steps(Environment[StepsItem]):
    name: ClassVar[str] = "steps"
    version: ClassVar[str] = "1"
    tools: ClassVar[Sequence[str]] = ("terminal",)
    Item = StepsItem

    def prompt(self, item: StepsItem) -> list[Message]:
        return [Message(role="user", content=f"Count to {item.turns}.")]

    def spec(self, item: StepsItem, profile: str) -> SlotSpec:
        return SlotSpec(profile=profile)

    async def setup(self, item: StepsItem, context: SlotContext) -> None:
        found = await context.run("cat log")
        if found.stdout.strip():
            raise EnvInfraError(f"the slot is not empty: {found.stdout!r}")
        await context.run("echo begin >>log")

    async def verify(
        self, item: StepsItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        found = (await context.run("cat log")).stdout.decode().split()
        wanted = ["begin", *map(str, range(item.turns))]
        return Verdict(float(found == wanted), report={"found": found})

    async def oracle(self, item: StepsItem, context: SlotContext) -> list[ToolCall]:
        return []

    def oracle_answer(self, item: StepsItem) -> str:
        return "done"

    def tamper(self, item: StepsItem) -> Mapping[str, Sequence[ToolCall | str]]:
        return {}


class Calculating(Steps):
    """Its agent does not touch the slot."""

    tools: ClassVar[Sequence[str]] = ("calculator",)


class Taking(Steps):
    """What its agent has left travels without the slot, with a key that a model might write."""

    async def take_work(
        self, item: StepsItem, context: SlotContext, transcript: Sequence[Message]
    ) -> bytes:
        key = f"ghp_{item.turns:036}" if item.instance_id == "secret" else ""
        return (await context.run("cat log")).stdout + b"\xff" + key.encode()

    async def measure_work(self, item: StepsItem, context: SlotContext, work: bytes) -> Verdict:
        found = work.split(b"\xff")[0].decode().split()
        return Verdict(float(found == ["begin", *map(str, range(item.turns))]))


def played(turns: int, *, pause_s: float = 0.0) -> dict[str, object]:
    """The agent that does it, without a model; each turn may take a while."""
    messages = [_turn(number, pause_s) for number in range(turns)]
    return {"kind": "replay", "params": {"messages": messages}}


def calculated(turns: int) -> dict[str, object]:
    """The same, by sums."""
    calls = [make_call(f"c{n}", "calculator", expression=f"{n}+0") for n in range(turns)]
    messages = [{"role": "assistant", "tool_calls": [call]} for call in calls]
    return {"kind": "replay", "params": {"messages": messages}}


def _turn(number: int, pause_s: float) -> dict[str, object]:
    pause = f"sleep {pause_s}; " if pause_s else ""
    call = make_call(f"c{number}", "terminal", command=f"{pause}echo {number} >>log")
    return {"role": "assistant", "tool_calls": [call.model_dump(mode="json")]}


ENV = Steps()
CALCULATING = Calculating()
TAKING = Taking()
