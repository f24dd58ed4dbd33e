"""`steps_env` with a verifier that waits for a file: `--env gated_steps_env:ENV`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from steps_env import Steps, StepsItem

from envs.base import Verdict
from hermes_queue.models import Message
from hermes_queue.sandbox.context import SlotContext


class GatedStepsItem(StepsItem):
    gate: str


class GatedSteps(Steps):
    Item = GatedStepsItem

    async def verify(
        self, item: StepsItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        assert isinstance(item, GatedStepsItem)
        while not Path(item.gate).exists():
            await asyncio.sleep(0.02)
        return await super().verify(item, context, transcript)


ENV = GatedSteps()
