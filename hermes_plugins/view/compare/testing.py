"""Tests x samples: which test failed in which sample, as far as the reports say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_plugins.view.present.shapes import whole
from hermes_plugins.view.present.verdicts import (
    failing_of,
    failing_tests,
    passed_tests,
    sets_of_tests,
)
from hermes_queue.terminal.escapes import label

ROWS_MOST = 500
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
    chosen = list(sets)[:ROWS_MOST]
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
