"""All samples of a group in one comparison."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hermes_plugins.view.compare.alignment import AlignedRow, aligned
from hermes_plugins.view.compare.patching import patches
from hermes_plugins.view.present.conversation import all_messages, arguments_of, main_argument
from hermes_plugins.view.present.shapes import as_json, items, mapping, number, whole
from hermes_plugins.view.present.tokens import ids_of, sequence_turns
from hermes_plugins.view.present.verdicts import (
    failing_of,
    failing_tests,
    passed_tests,
    sets_of_tests,
)
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
        `parting`; None for the reference), `patch` (see `patching.patches`);
        `rows`: `name`, `argument`, `reference` (whether it is a step of the reference), `messages`
        (per column the number of the message, or None), `passing` and `failing` (in how many
        samples of each outcome the step occurs, anywhere);
        `folds`: `[first, last]` of rows that all samples share, at least `FOLD_LEAST` in a row;
        `rows_left_out`; `outcomes` (number of samples by outcome); `tests`, see
        `tests_by_sample`.
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


STEPS_MOST = 2000
"""Of one sample."""
ARGUMENT_MOST = 160
ANSWER = "(answer)"
"""Name of the step of a reply without a call."""
_READ_MOST = 2000
"""Characters of an argument that are looked at."""

_END = r"\s'\"`;|&<>()"
"""Characters of a shell's line that end a path."""
_TEMPORARY = re.compile(
    rf"(/tmp/|/var/tmp/|/dev/shm/|/run/user/)[^{_END}]*?(\.\w{{1,5}})?(?=[{_END}]|$)"
)
_PLACE = re.compile(r"^\s*cd [^\s;&|]{1,200} *(?:&&|;) *")
_WORKSPACE = re.compile(
    r"(?:/workspace|/testbed|\$PWD|\$HOME|~)/(?=[\w.])|(?<![\w./])(?:\./)+(?=[\w.])"
)
_RANDOM = re.compile(
    r"\b(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,64}|\d{5,20})\b"
)
_BLANK = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One step; equal steps are the same action."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """The steps of a sample, and the number of the message of each."""

    steps: tuple[AgentStep, ...]
    at: tuple[int, ...]
    left_out: int


def steps_of(raw: Mapping[Any, Any]) -> AgentSteps:
    """The steps of a record in order, at most `STEPS_MOST`.

    A reply without a call is a step, too: its last line.
    """
    found: list[AgentStep] = []
    at: list[int] = []
    left_out = 0
    for n, message in enumerate(all_messages(raw)):
        known = mapping(message)
        if known.get("role") != "assistant":
            continue
        calls = items(known.get("tool_calls"))
        taken = calls[: STEPS_MOST - len(found)]
        left_out += len(calls) - len(taken)
        found += map(_step, taken)
        at += [n] * len(taken)
        if not calls and len(found) < STEPS_MOST:
            found.append(AgentStep(ANSWER, _last_line(known.get("content"))))
            at.append(n)
    return AgentSteps(tuple(found), tuple(at), left_out)


def normalised(argument: str) -> str:
    """An argument without what differs for no reason: white space, temporary names, the workspace.

    `cd /workspace && python  ./x.py /tmp/a81.log` becomes `python x.py /tmp/*.log`. Long numbers
    and hashes become `#`.
    """
    text = _BLANK.sub(" ", argument[:_READ_MOST]).strip()
    text = _PLACE.sub("", text)
    text = _TEMPORARY.sub(lambda found: f"{found[1]}*{found[2] or ''}", text)
    text = _RANDOM.sub("#", _WORKSPACE.sub("", text))
    return label(text, ARGUMENT_MOST)


def _step(call: object) -> AgentStep:
    function = mapping(mapping(call).get("function"))
    given = arguments_of(call)
    if given is None:
        main = function.get("arguments")
    else:
        main = main_argument(given)
    if main is not None and not isinstance(main, str):
        main = as_json(main, indent=None)
    return AgentStep(label(function.get("name"), 80), normalised(main or ""))


def _last_line(content: object) -> str:
    if not isinstance(content, str):
        return ""
    return normalised(content[-_READ_MOST:].strip().rpartition("\n")[2])


_BLOCK = 1 << 12
_TOKEN = 4
"""Bytes of a token id."""


class SampleCourse:
    """What is compared of one sample, read once: the ids of its first sequence, or its messages."""

    def __init__(self, raw: Mapping[Any, Any]) -> None:
        self._raw = raw
        given = items(raw.get("sequences"))
        self.ids = ids_of(mapping(given[0]).get("ids")).tobytes() if given else b""
        self._hashes: list[bytes] | None = None

    def hashes(self) -> list[bytes]:
        """A hash of each message, without the ids of calls, which are drawn anew in each sample."""
        if self._hashes is None:
            self._hashes = [_hash(message) for message in all_messages(self._raw)]
        return self._hashes

    def turn_at(self, token: int) -> int | None:
        """The turn that sampled a token of the first sequence, or that follows it."""
        for turn in sequence_turns(self._raw, 0):
            if token < turn["start"] + turn["length"]:
                return turn["turn"]
        return None


def parting(reference: SampleCourse, other: SampleCourse) -> dict[str, Any]:
    """`{"by", "at", "of", "turn"}`: where `other` differs from the reference for the first time.

    `by` is `ids` (`at` is the number of a token in the first sequence) or `messages` (of a
    message). `at` is None if there is no difference; `of` is the length of the reference.
    """
    if reference.ids and other.ids:
        at = _first_difference(reference.ids, other.ids)
        token = None if at is None else at // _TOKEN
        return {
            "by": "ids",
            "at": token,
            "of": len(reference.ids) // _TOKEN,
            "turn": None if token is None else other.turn_at(token),
        }
    ours, theirs = reference.hashes(), other.hashes()
    shared = min(len(ours), len(theirs))
    end = None if len(ours) == len(theirs) else shared
    place = next((n for n in range(shared) if ours[n] != theirs[n]), end)
    return {"by": "messages", "at": place, "of": len(ours), "turn": None}


def _first_difference(first: bytes, second: bytes) -> int | None:
    """The first byte that differs, or where the shorter one ends; None if they are equal."""
    if first == second:
        return None
    shared = min(len(first), len(second))
    at = 0
    while at < shared and first[at : at + _BLOCK] == second[at : at + _BLOCK]:
        at += _BLOCK
    while at < shared and first[at] == second[at]:
        at += 1
    return min(at, shared)


def _hash(message: object) -> bytes:
    known = mapping(message)
    made = hashlib.blake2b(digest_size=16)
    for name in ("role", "content", "reasoning"):
        _add(made, known.get(name))
    for call in items(known.get("tool_calls")):
        function = mapping(mapping(call).get("function"))
        _add(made, function.get("name"))
        _add(made, function.get("arguments"))
    return made.digest()


def _add(made: Any, value: object) -> None:
    text = value if isinstance(value, str) else "" if value is None else as_json(value)
    data = text.encode(errors="surrogatepass")
    made.update(b"%d:" % len(data))
    made.update(data)


TESTS_MOST = 500
_NAME_MOST = 500


def tests_by_sample(records: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
    """`{"rows": [{"test", "set", "cells"}], "left_out"}`, of the tests that any sample failed.

    A cell is `passed`, another outcome, or None: not reported. A report that lists all of its
    failures in a set of tests, and ran every test of it, says of the others that they passed.
    """
    failing = [failing_tests(raw) for raw in records]
    passed = [frozenset(passed_tests(raw) or ()) for raw in records]
    complete = [_complete_sets(raw) for raw in records]
    sets: dict[str, str] = {}
    for raw, known in zip(records, failing, strict=True):
        named = _set_of_tests(raw)
        for test in known:
            sets.setdefault(test, named.get(test, ""))
    chosen = list(sets)[:TESTS_MOST]
    rows = [
        {
            "test": label(test, _NAME_MOST),
            "set": label(sets[test]),
            "cells": [
                _cell(test, sets[test], *known)
                for known in zip(failing, passed, complete, strict=True)
            ],
        }
        for test in chosen
    ]
    return {"rows": rows, "left_out": len(sets) - len(chosen)}


def _cell(
    test: str,
    its_set: str,
    failing: Mapping[str, str],
    passed: frozenset[str],
    complete: frozenset[str],
) -> str | None:
    if test in failing:
        return label(failing[test])
    return "passed" if test in passed or its_set in complete else None


def _complete_sets(raw: Mapping[Any, Any]) -> frozenset[str]:
    """Sets of tests that ran wholly, and of which each failure is listed."""
    return frozenset(
        name
        for name, part in sets_of_tests(raw).items()
        if whole(part.get("failure")) == len(failing_of(part)) and whole(part.get("not_run")) == 0
    )


def _set_of_tests(raw: Mapping[Any, Any]) -> dict[str, str]:
    return {test: name for name, part in sets_of_tests(raw).items() for test in failing_of(part)}
