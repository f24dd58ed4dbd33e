"""All samples of a group in one comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hermes_plugins.view.compare.alignment import AlignedRow, aligned
from hermes_plugins.view.compare.parting import SampleCourse, parting
from hermes_plugins.view.compare.patching import patches
from hermes_plugins.view.compare.steps import AgentStep, AgentSteps, steps_of
from hermes_plugins.view.compare.testing import tests_by_sample
from hermes_plugins.view.present.shapes import items, mapping, number, whole
from hermes_queue.terminal.escapes import label

SAMPLES_MOST = 64
ROWS_MOST = 3000
FOLD_LEAST = 3
"""Equal rows in a row that are folded."""
PASSING = 1.0
"""A score from which on a sample counts as passing."""

Outcome = Literal["passing", "failing", "unmeasured"]


def compare(
    records: Sequence[Mapping[Any, Any]],
    reference: int | None = None,
    *,
    passing: float = PASSING,
) -> dict[str, Any]:
    """The samples of one group, aligned by what they did.

    Args:
        records: raw records, in the order of the columns; the first `SAMPLES_MOST` are taken.
        reference: number of the column that the others are aligned to; None = the best score, and
            of several the one with the fewest steps.
        passing: the score from which on a sample counts as passing.

    Returns:
        `reference`; `left_out` (samples);
        `samples`: per column `id`, `sample`, `score`, `outcome` (passing, failing, unmeasured),
        `status`, `stop_reason`, `reason`, `turns`, `steps`, `completion_tokens`, `cost`, `shared`
        (steps that it has in common with the reference, aligned), `parts_at` (the first row in
        which it does something else than the reference; None = nowhere), `parting` (see
        `parting.parting`; None for the reference), `patch` (see `patching.patches`);
        `rows`: `name`, `argument`, `reference` (whether it is a step of the reference), `messages`
        (per column the number of the message, or None), `passing` and `failing` (in how many
        samples of each outcome the step occurs, anywhere);
        `folds`: `[first, last]` of rows that all samples share, at least `FOLD_LEAST` in a row;
        `rows_left_out`; `outcomes` (number of samples by outcome); `tests`, see
        `testing.tests_by_sample`.
    """
    chosen = [mapping(raw) for raw in records[:SAMPLES_MOST]]
    if not chosen:
        return _nothing()
    steps = [steps_of(raw) for raw in chosen]
    outcomes = [_outcome(raw, passing) for raw in chosen]
    if reference is None or not 0 <= reference < len(chosen):
        reference = _reference(chosen, steps)
    rows = aligned([each.steps for each in steps], reference)
    courses = [SampleCourse(raw) for raw in chosen]
    partings = [
        None if n == reference else parting(courses[reference], course)
        for n, course in enumerate(courses)
    ]
    own = patches(chosen)
    samples = [
        _sample(raw, steps[n], outcomes[n])
        | _course(rows, n, reference)
        | {"parting": partings[n], "patch": own[n]}
        for n, raw in enumerate(chosen)
    ]
    return {
        "reference": reference,
        "left_out": max(0, len(records) - len(chosen)),
        "samples": samples,
        "rows": _shown(rows[:ROWS_MOST], steps, outcomes),
        "folds": _folds(rows[:ROWS_MOST], len(chosen)),
        "rows_left_out": max(0, len(rows) - ROWS_MOST),
        "outcomes": {name: outcomes.count(name) for name in ("passing", "failing", "unmeasured")},
        "tests": tests_by_sample(chosen),
    }


def _nothing() -> dict[str, Any]:
    return {
        "reference": None,
        "left_out": 0,
        "samples": [],
        "rows": [],
        "folds": [],
        "rows_left_out": 0,
        "outcomes": {"passing": 0, "failing": 0, "unmeasured": 0},
        "tests": {"rows": [], "left_out": 0},
    }


def _outcome(raw: Mapping[Any, Any], passing: float) -> Outcome:
    score = number(raw.get("score"))
    if score is None:
        return "unmeasured"
    return "passing" if score >= passing else "failing"


def _reference(records: Sequence[Mapping[Any, Any]], steps: Sequence[AgentSteps]) -> int:
    def rank(n: int) -> tuple[bool, float, bool, int]:
        score = number(records[n].get("score"))
        own = len(steps[n].steps)
        return score is None, -(score or 0.0), own == 0, own

    return min(range(len(records)), key=rank)


def _sample(raw: Mapping[Any, Any], steps: AgentSteps, outcome: Outcome) -> dict[str, Any]:
    usage = mapping(raw.get("usage"))
    return {
        "id": label(raw.get("trajectory_id")),
        "sample": whole(raw.get("sample_index")),
        "score": number(raw.get("score")),
        "outcome": outcome,
        "status": label(raw.get("status")),
        "stop_reason": label(raw.get("stop_reason")),
        "reason": label(mapping(raw.get("report")).get("reason")),
        "turns": len(items(raw.get("turns"))),
        "steps": len(steps.steps) + steps.left_out,
        "completion_tokens": whole(usage.get("completion_tokens", 0)),
        "cost": number(raw.get("cost_usd")),
    }


def _course(rows: Sequence[AlignedRow], n: int, reference: int) -> dict[str, Any]:
    """How much sample `n` shares with the reference, and from which row on it does not."""
    both = sum(1 for row in rows if n in row.places and reference in row.places)
    parts = (
        place for place, row in enumerate(rows) if (n in row.places) != (reference in row.places)
    )
    return {"shared": both, "parts_at": next(parts, None)}


def _shown(
    rows: Sequence[AlignedRow], steps: Sequence[AgentSteps], outcomes: Sequence[Outcome]
) -> list[dict[str, Any]]:
    where: dict[object, dict[Outcome, int]] = {}
    for outcome, each in zip(outcomes, steps, strict=True):
        for step in set(each.steps):
            counts = where.setdefault(step, {"passing": 0, "failing": 0, "unmeasured": 0})
            counts[outcome] += 1
    return [_row(row, steps, where) for row in rows]


def _row(
    row: AlignedRow, steps: Sequence[AgentSteps], where: Mapping[object, Mapping[Outcome, int]]
) -> dict[str, Any]:
    step = row.step if isinstance(row.step, AgentStep) else AgentStep("", "")
    places = [row.places.get(n) for n in range(len(steps))]
    return {
        "name": step.name,
        "argument": step.argument,
        "reference": row.reference is not None,
        "messages": [
            None if place is None else each.at[place]
            for place, each in zip(places, steps, strict=True)
        ],
        "passing": where[step]["passing"],
        "failing": where[step]["failing"],
    }


def _folds(rows: Sequence[AlignedRow], samples: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    begun: int | None = None
    for place in range(len(rows) + 1):
        if place < len(rows) and len(rows[place].places) == samples:
            begun = place if begun is None else begun
        elif begun is not None:
            if place - begun >= FOLD_LEAST:
                found.append((begun, place - 1))
            begun = None
    return found
