"""The env of the harness: a command of random length, and a journal outside Redis.

The score follows from the row, so every reader of a record can tell whether it is right.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from envs.base import Environment, Verdict
from hermes_queue.disk.durable import append_line
from hermes_queue.errors import EnvInfraError
from hermes_queue.models import FunctionCall, Message, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import PREFIX

TURNS = 3
"""Tool calls of the gold answer."""
JOURNAL = "CHAOS_JOURNAL"
"""Environment variable: the file to which each measurement is appended."""


class ChaosRow(BaseModel):
    """One task."""

    model_config = ConfigDict(extra="forbid")

    instance_id: str
    seconds: float
    poison: Literal["", "setup", "verify"] = ""
    """The stage in which sample 0 kills its worker."""


def expected_score(instance_id: str) -> float:
    """Return the only correct score of a task; never 0, which a mistake might also give."""
    return (1 + hashlib.sha256(instance_id.encode()).digest()[0]) / 256


class Chaos(Environment[ChaosRow]):
    """Sleep, write a proof, be measured."""

    name: ClassVar[str] = "chaos"
    version: ClassVar[str] = "1"
    tools: ClassVar[Sequence[str]] = ("terminal",)
    Item = ChaosRow

    def prompt(self, item: ChaosRow) -> list[Message]:
        """Ask for nothing clever."""
        return [Message(role="user", content=f"Take {item.seconds} s for {item.instance_id}.")]

    def spec(self, item: ChaosRow, profile: str) -> SlotSpec:
        """Ask for a bare slot."""
        return SlotSpec(profile=profile)

    async def setup(self, item: ChaosRow, context: SlotContext) -> None:
        """Check that the workspace is really empty; die of poison."""
        _die_of(item, "setup", context)
        found = await context.run("ls -A")
        if found.stdout.strip():
            raise EnvInfraError(f"the workspace is not empty: {found.stdout!r}")

    async def oracle(self, item: ChaosRow, context: SlotContext) -> list[ToolCall]:
        """Sleep, and write the trajectory's id into the proof, in each turn."""
        pause_s = item.seconds / TURNS
        command = f"sleep {pause_s:.2f}; echo {context.slot.trajectory_id} >> proof"
        call = FunctionCall(name="terminal", arguments=json.dumps({"command": command}))
        return [ToolCall(id=f"c{turn}", function=call) for turn in range(TURNS)]

    def oracle_answer(self, item: ChaosRow) -> str:
        """Return the final message."""
        return "done"

    async def verify(
        self, item: ChaosRow, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        """Give full score for a proof of this very trajectory, of each turn once; journaled."""
        return _measured(item, context, (await context.run("cat proof")).stdout)

    def tamper(self, item: ChaosRow) -> Mapping[str, Sequence[ToolCall | str]]:
        """Return none."""
        return {}


class ChaosInBytes(Chaos):
    """The same; another worker grades the proof itself instead of a copy of the slot."""

    name: ClassVar[str] = "chaos-in-bytes"

    async def take_work(
        self, item: ChaosRow, context: SlotContext, transcript: Sequence[Message]
    ) -> bytes:
        """Return the proof."""
        return (await context.run("cat proof")).stdout

    async def measure_work(self, item: ChaosRow, context: SlotContext, work: bytes) -> Verdict:
        """As `verify`."""
        await context.run("true")  # in a slot that is really there
        return _measured(item, context, work)


def _measured(item: ChaosRow, context: SlotContext, proof: bytes) -> Verdict:
    """Die of poison, or journal the verdict before it is returned."""
    _die_of(item, "verify", context)
    trajectory_id = context.slot.trajectory_id
    is_right = proof.decode().split() == TURNS * [trajectory_id]
    score = expected_score(item.instance_id) if is_right else 0.0
    by = os.environ.get(f"{PREFIX}WORKER_STAGES", "")
    line = json.dumps({"trajectory_id": trajectory_id, "score": score, "stages": by})
    append_line(Path(os.environ[JOURNAL]), line)
    return Verdict(score)


def _die_of(item: ChaosRow, stage: str, context: SlotContext) -> None:
    if item.poison == stage and context.slot.trajectory_id.endswith(".0"):
        os.kill(os.getpid(), signal.SIGKILL)


ENV = Chaos()
IN_BYTES = ChaosInBytes()
