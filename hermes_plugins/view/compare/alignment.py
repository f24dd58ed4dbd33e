"""Aligns sequences by a longest common subsequence, in words of the machine instead of pairs.

`difflib` looks for the longest equal block first, misses others for it, and takes the cube of the
length for steps that repeat, which a hostile record can have by the thousand. This finds the most
steps that two samples have in common, in the product of their lengths divided by the bits of a
machine word (Hyyrö, 2004: "Bit-parallel LCS-length computation revisited").
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

MERGED_MOST = 3000
"""Rows between two of the reference that are compared with a further sample."""


def common(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """A longest common subsequence: pairs of places, both rising."""
    wanted = set(second)
    masks: dict[Hashable, int] = {}
    for place, each in enumerate(first):
        if each in wanted:
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
class AlignedRow:
    """One action, and where each sample did it."""

    step: Hashable
    reference: int | None
    """Its place in the reference; None if that did something else."""
    places: dict[int, int] = field(default_factory=dict)
    """Sample -> place in its steps."""


def aligned(samples: Sequence[Sequence[Hashable]], reference: int) -> list[AlignedRow]:
    """All steps of all samples in rows, in the order of the reference and of each sample.

    What a sample did between two steps that it shares with the reference stands behind what the
    reference did there; samples that did the same there share a row.
    """
    main = samples[reference]
    rows = [AlignedRow(step, place, {reference: place}) for place, step in enumerate(main)]
    before: list[list[AlignedRow]] = [[] for _ in range(len(main) + 1)]
    for number, steps in enumerate(samples):
        if number == reference:
            continue
        begun = 0
        for here, there in [*common(main, steps), (len(main), len(steps))]:
            if begun < there:
                _merge(before[here], number, steps, begun, there)
            if there < len(steps):
                rows[here].places[number] = there
            begun = there + 1
    found = [each for row, own in zip(rows, before, strict=False) for each in (*own, row)]
    return found + before[-1]


def _merge(
    rows: list[AlignedRow], number: int, steps: Sequence[Hashable], begun: int, end: int
) -> None:
    """Put the steps of a sample from `begun` to `end` into the rows of such a place."""
    old = rows[:MERGED_MOST]
    merged: list[AlignedRow] = []
    read = 0
    at = begun
    pairs = common([row.step for row in old], steps[begun:end])
    for here, there in [*pairs, (len(old), end - begun)]:
        merged += old[read:here]
        merged += [AlignedRow(steps[n], None, {number: n}) for n in range(at, begun + there)]
        if here < len(old):
            old[here].places[number] = begun + there
            merged.append(old[here])
        read, at = here + 1, begun + there + 1
    rows[:MERGED_MOST] = merged
