"""Aligns sequences by a longest common subsequence, in words of the machine instead of pairs.

`difflib` looks for the longest equal block first, misses others for it, and takes the cube of the
length for steps that repeat, which a hostile record can have by the thousand. This finds the most
steps that two samples have in common, in the product of their lengths divided by the bits of a
machine word (Hyyrö, 2004: "Bit-parallel LCS-length computation revisited").
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


def common(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """A longest common subsequence: pairs of places, both rising."""
    masks: dict[Hashable, int] = {}
    for place, each in enumerate(first):
        masks[each] = masks.get(each, 0) | 1 << place
    rows: list[int] = []
    full = (1 << len(first)) - 1
    row = full
    for each in second:
        found = row & masks.get(each, 0)
        row = (row + found | row - found) & full
        rows.append(row)
    return _traced(rows, len(first))


def _traced(rows: Sequence[int], width: int) -> list[tuple[int, int]]:
    """The pairs, from the ends: in a row, a bit that is not set is a place where one more fits."""
    pairs: list[tuple[int, int]] = []
    left, down = width, len(rows)
    while left and down:
        if rows[down - 1] >> left - 1 & 1:
            left -= 1
            continue
        down -= 1
        if down and not rows[down - 1] >> left - 1 & 1:
            continue
        left -= 1
        pairs.append((left, down))
    pairs.reverse()
    return pairs


@dataclass(slots=True)
class Row:
    """One action, and where each sample did it."""

    step: Hashable
    reference: int | None
    """Its place in the reference; None if that did something else."""
    places: dict[int, int] = field(default_factory=dict)
    """Sample -> place in its steps."""


def aligned(samples: Sequence[Sequence[Hashable]], reference: int) -> list[Row]:
    """All steps of all samples in rows, in the order of the reference.

    What a sample did between two steps of the reference stands between their rows; samples that
    did the same there share a row.
    """
    main = samples[reference]
    rows = [Row(step, place, {reference: place}) for place, step in enumerate(main)]
    between: list[dict[tuple[Hashable, int], Row]] = [{} for _ in range(len(main) + 1)]
    for number, steps in enumerate(samples):
        if number == reference:
            continue
        matched = {other: place for place, other in common(main, steps)}
        gap, counts = 0, dict[Hashable, int]()
        for place, step in enumerate(steps):
            if place in matched:
                rows[matched[place]].places[number] = place
                gap, counts = matched[place] + 1, {}
                continue
            counts[step] = counts.get(step, 0) + 1
            row = between[gap].setdefault((step, counts[step]), Row(step, None))
            row.places[number] = place
    found = list(between[0].values())
    for row, others in zip(rows, between[1:], strict=True):
        found += [row, *others.values()]
    return found
