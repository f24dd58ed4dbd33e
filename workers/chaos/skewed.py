"""Run a module under a clock that is wrong and jumps: `python -m workers.chaos.skewed MODULE ...`.

Only the wall clock (`time.time`) is touched, as NTP steps and bad hosts do; monotonic time is
what it is.
"""

from __future__ import annotations

import random
import runpy
import sys
import time
from collections.abc import Callable

SKEW_S = 10.0
"""Furthest from the truth, either way."""
JUMP_S = 7.0
"""How long the clock is wrong by the same amount."""


def skewed(clock: Callable[[], float], seed: int) -> Callable[[], float]:
    """`clock`, off by an amount that changes every `JUMP_S`."""

    def now() -> float:
        true = clock()
        dice = random.Random(seed * 1_000_003 + int(true / JUMP_S))  # noqa: S311 - no secret
        return true + dice.uniform(-SKEW_S, SKEW_S)

    return now


def main() -> None:
    """Replace the clock before anything else is imported, then run the module."""
    import os

    time.time = skewed(time.time, os.getpid())
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
