"""Policy versions: which of them served a trajectory, and how old a sample is.

A version is text, as servers return it ("12", "step-1200", "default"). Versions are compared by
their trailing number; a version without one has no known age.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

from hermes_queue.models import ScoredTrajectory, TokenSequence, Turn

VERSION_MAX = 2**53 - 1
"""Largest integer that a double holds exactly; Lua counts in doubles."""
_NUMBER = re.compile(r"(?:.*\D)?(\d{1,15})", re.DOTALL)


def version_number(text: str | None) -> int | None:
    """The trailing number of a version; None if it has none."""
    match = _NUMBER.fullmatch(text) if text else None
    return int(match[1]) if match else None


def _versions(turn: Turn) -> list[str | None]:
    """All versions that sampled tokens of the turn, oldest first."""
    return [version for version, _ in turn.policy_spans] or [turn.policy_version]


def sampled_spans(
    record: ScoredTrajectory, sequence: TokenSequence
) -> list[tuple[int, int, str | None]]:
    """The trained tokens of a sequence as (begin, end, version that sampled them), in order.

    None = unknown. Empty if the record does not say which turns are in the sequence.
    """
    found: list[tuple[int, int, str | None]] = []
    for turn in _turns_in(record, sequence):
        begin, count = len(turn.prompt_ids or ()), len(turn.completion_ids or ())
        if not count or not any(sequence.loss_mask[begin : begin + 1]):
            continue
        spans = turn.policy_spans or ((turn.policy_version, 0),)
        # A server may say anything of a reply of which it returns text.
        begins = [min(first, count) for first in accumulate((each for _, each in spans), max)]
        for (version, _), first, end in zip(spans, begins, [*begins[1:], count], strict=True):
            if first < end:
                found.append((begin + first, begin + end, version))
    return found


def _turns_in(record: ScoredTrajectory, sequence: TokenSequence) -> Iterator[Turn]:
    """The turns of a sequence, in order."""
    if sequence.turns:
        yield from (record.turns[number] for number in sequence.turns if number < len(record.turns))
        return
    # Those of our own loop follow each other, and the last one of a sequence ends with it.
    turns = iter(record.turns)
    for each in record.sequences or ():
        for turn in turns:
            if each is sequence:
                yield turn
            if len(turn.prompt_ids or ()) + len(turn.completion_ids or ()) >= len(each.ids):
                break


def span(turns: Sequence[Turn]) -> tuple[str | None, str | None]:
    """The oldest and the newest version that served `turns`; None if none is known.

    If the versions cannot be compared, the first and the last known one in order of the turns.
    """
    versions = [version for turn in turns for version in _versions(turn) if version is not None]
    if not versions:
        return None, None
    numbers = {text: version_number(text) for text in versions}
    known = {text: number for text, number in numbers.items() if number is not None}
    if len(known) < len(numbers):
        return versions[0], versions[-1]
    return min(known, key=lambda text: known[text]), max(known, key=lambda text: known[text])


def oldest_number(record: ScoredTrajectory) -> int | None:
    """The oldest version that can have served the record; None if unknown.

    A turn without a version was served by the run's version when the attempt began, or by a
    later one.
    """
    numbers = [version_number(each) for turn in record.turns for each in _versions(turn)]
    if None in numbers:
        numbers.append(record.policy_begun)
        if record.policy_begun is None:
            return None
    return min((number for number in numbers if number is not None), default=None)
