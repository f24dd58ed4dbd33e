"""Versions of a policy: what served a trajectory, and how old that is.

A version is text, as servers give it ("12", "step-1200", "default"). Only its trailing number can
be compared; a text without one says nothing of its age.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_queue.models import ScoredTrajectory, Turn

VERSION_MAX = 2**53 - 1
"""Lua counts in doubles."""
_NUMBER = re.compile(r"(?:.*\D)?(\d{1,15})", re.DOTALL)


def version_number(text: str | None) -> int | None:
    """The number that a version ends with; None when it ends with none."""
    match = _NUMBER.fullmatch(text) if text else None
    return int(match[1]) if match else None


def _versions(turn: Turn) -> list[str | None]:
    """All that sampled the turn, the oldest first."""
    return [version for version, _ in turn.policy_spans] or [turn.policy_version]


def span(turns: Sequence[Turn]) -> tuple[str | None, str | None]:
    """The oldest and the newest version that served `turns`; None when none is told.

    Where they cannot be compared, those of the first and the last turn that tell one.
    """
    told = [version for turn in turns for version in _versions(turn) if version is not None]
    if not told:
        return None, None
    numbers = {text: version_number(text) for text in told}
    known = {text: number for text, number in numbers.items() if number is not None}
    if len(known) < len(numbers):
        return told[0], told[-1]
    return min(known, key=lambda text: known[text]), max(known, key=lambda text: known[text])


def oldest_number(record: ScoredTrajectory) -> int | None:
    """The oldest version that can have served the record; None when nobody can tell.

    A turn whose server told no version was served by the run's version at the attempt's begin,
    or by a later one.
    """
    numbers = [version_number(each) for turn in record.turns for each in _versions(turn)]
    if None in numbers:
        numbers.append(record.policy_begun)
        if record.policy_begun is None:
            return None
    return min((number for number in numbers if number is not None), default=None)
