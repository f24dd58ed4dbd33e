"""Limits the trajectories that report their stages to Flower: all slow ones, a few of a flood."""

from __future__ import annotations

import time


class StageEvents:
    """Lets `per_s` trajectories a second report, either all their stages or none.

    An event costs Flower and the worker about as much as a whole trajectory that does nothing.
    """

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at = time.monotonic()

    def take(self, now: float | None = None) -> bool:
        """Whether one more may report, as of `now` (monotonic seconds)."""
        moment = time.monotonic() if now is None else now
        most = max(1.0, self._per_s)
        self._left = min(most, self._left + (moment - self._at) * self._per_s)
        self._at = moment
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
