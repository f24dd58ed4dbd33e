"""Turns of a record whose tokens drifted: what is trained would not be what was sampled."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from hermes_queue.agent.tokens.merge import BreakReason, is_delivered, parents
from hermes_queue.ledger.accounts.fields import DRIFTED, RESERIALISED, TURNS
from hermes_queue.models import ScoredTrajectory

_REASONS = frozenset(get_args(BreakReason))
_UNEXPECTED = frozenset({"reply", "earlier_turns"})
"""Reasons of a `sequence_break` if neither we, the agent nor a limit has changed anything."""


def drift_in(record: ScoredTrajectory) -> Counter[str]:
    """Turns that continue another one, breaks by reason, and unexpected ones; empty without ids.

    A program that gets messages writes the arguments of its calls anew, with other blanks or in
    another order. That is its right and no drift of ours: such breaks are `RESERIALISED`.
    """
    if record.sequences is None:
        return Counter()
    above = parents(record.turns)
    found = Counter(
        {
            TURNS: sum(
                p is not None and is_delivered(t) for p, t in zip(above, record.turns, strict=True)
            )
        }
    )
    if not found[TURNS]:
        return Counter()
    for event in record.events:
        if event.get("event") == "sequence_break":
            reason = _reason(record, event.get("turn"), str(event.get("reason")), above)
            found[reason] += 1
            found[DRIFTED] += reason in _UNEXPECTED
    return found


def _reason(record: ScoredTrajectory, turn: object, reason: str, above: list[int | None]) -> str:
    """The reason; `RESERIALISED` if a program has written the arguments of calls anew."""
    if reason not in _REASONS:
        return "unknown"
    is_program = record.program is not None and record.agent.params.get("mode") != "tokens"
    if reason != "reply" or not is_program:
        return reason
    parent = above[turn] if isinstance(turn, int) and 0 <= turn < len(above) else None
    called = parent is not None and record.turns[parent].finish_reason == "tool_calls"
    return RESERIALISED if called else reason
