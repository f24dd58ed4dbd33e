"""Runs a module under a wrong, jumping clock: `python -m tests.chaos.skewed MODULE ...`.

Only the wall clock (`time.time`) is changed, as NTP steps and bad hosts do; monotonic time is
correct.
"""

from __future__ import annotations

import random
import runpy
import sys
import time
from collections.abc import Callable

SKEW_S = 10.0
"""Maximum deviation in either direction."""
JUMP_S = 7.0
"""Seconds for which the deviation is constant."""


def skewed(clock: Callable[[], float], seed: int) -> Callable[[], float]:
    """Return `clock` plus a deviation that changes every `JUMP_S`."""

    def now() -> float:
        true = clock()
        dice = random.Random(seed * 1_000_003 + int(true / JUMP_S))
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
