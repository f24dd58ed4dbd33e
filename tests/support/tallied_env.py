"""An env that writes each measurement down, so that repeated ones count: `tallied_env:ENV`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from envs.base import Verdict
from envs.gsm8k import Gsm8k

TALLY = "TALLIED_FILE"


class _Tallied(Gsm8k):
    async def verify(self, item, context, transcript):
        with open(os.environ[TALLY], "a") as tally:  # one write: lines of processes do not mix
            tally.write(f"{context.slot.trajectory_id}\n")
        return Verdict(1.0)


def measurements(tally: Path) -> Counter[str]:
    """Times that each trajectory was measured."""
    return Counter(tally.read_text().split()) if tally.exists() else Counter()


ENV = _Tallied()
