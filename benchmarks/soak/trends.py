"""Whether a series of samples is flat, bounded or grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

TOLERANCE = 0.05
"""Relative to the usual level; samples differ by as much from one moment to the next."""
WARM_UP = 0.1
"""Share of the samples that is left out: what starts, grows."""
LEAST = 12
"""Samples without which no verdict is possible."""

Verdict = Literal["flat", "bounded", "grows", "too short"]


@dataclass(frozen=True)
class Trend:
    """The second half of a series."""

    verdict: Verdict
    level: float
    """Its median."""
    rise: float
    """How much it rose, by the median of the slopes between all pairs of samples."""
    least: float
    most: float


def trend(samples: Sequence[tuple[float, float]], *, floor: float = 0.0) -> Trend:
    """The trend of samples (seconds, value), in order.

    flat: over the second half it rose by no more than `floor` or 5 % of its level. bounded: it rose
    or swings, but was never higher than in the first half, as what is compacted from time to time.
    grows: neither. Falling is not growing.
    """
    counted = samples[int(WARM_UP * len(samples)) :]
    middle = len(counted) // 2
    first, second = [value for _, value in counted[:middle]], counted[middle:]
    values = [value for _, value in second] or [0.0]
    level = statistics.median(values)
    if len(samples) < LEAST:
        return Trend("too short", level, 0.0, min(values), max(values))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(second, 2) if b[0] > a[0]]
    rise = statistics.median(slopes) * (second[-1][0] - second[0][0])
    slack = max(floor, TOLERANCE * abs(level))
    verdict: Verdict = "grows"
    if rise <= slack:
        verdict = "flat"
    elif max(values) <= max(first) + slack:
        verdict = "bounded"
    return Trend(verdict, level, rise, min(values), max(values))
