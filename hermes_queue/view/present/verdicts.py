"""What a verifier says of its score: reason, tests, output, what it left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_queue.view.present.shapes import items, mapping, tree, whole
from hermes_queue.view.present.signs import label
from hermes_queue.view.present.texts import text_of

TESTS_MOST = 2000
PATHS_MOST = 500
OUTPUT_BYTES = 64 << 10
_NAME_MOST = 500
_OUTPUTS = ("output_tail", "output", "test_output", "stdout")
_LEFT_OUT = ("dropped", "left_out", "dropped_links")
_ELSEWHERE = {"reason", "patch", "flags", "suspect", "tests_status", *_OUTPUTS, *_LEFT_OUT}


def verifier(raw: Mapping[Any, Any]) -> dict[str, Any]:
    """The report in parts: what every env may say, and `rest` as a tree.

    Keys: `reason`; `failed` and `passed`, ids of tests, or `passed` None where the env does not
    report it; `outcomes` (id -> outcome of the failed ones); `counts` (set of tests -> `passed`,
    `failed`, `not_run`); `first_failure` and `output`, texts or None; `dropped`, paths that the
    grading ignored, with `dropped_count`; `flags`; `suspect`; `rest`.
    """
    given = mapping(raw.get("report"))
    outcomes = failing_tests(raw)
    passed = passed_tests(raw)
    dropped = [path for name in _LEFT_OUT for path in items(given.get(name))]
    counted = whole(given.get("dropped_count"))
    first = given.get("first_failure")
    return {
        "reason": label(given.get("reason")),
        "failed": [label(test, _NAME_MOST) for test in outcomes],
        "outcomes": {label(test, _NAME_MOST): label(each) for test, each in outcomes.items()},
        "passed": None if passed is None else [label(test, _NAME_MOST) for test in passed],
        "counts": _counts(given.get("tests_status")),
        "first_failure": None if first is None else text_of(first, OUTPUT_BYTES),
        "output": _output(given),
        "dropped": [label(path, _NAME_MOST) for path in dropped[:PATHS_MOST]],
        "dropped_count": max(counted or 0, len(dropped)),
        "flags": _labels(given.get("flags")),
        "suspect": _labels(given.get("suspect")),
        "rest": _rest(given) if given or raw.get("report") is None else tree(raw.get("report")),
    }


def report(raw: Mapping[Any, Any]) -> Any:
    """The whole report as a tree, without the patch, which has a tab of its own."""
    given = raw.get("report")
    if not isinstance(given, Mapping):
        return tree(given)
    return tree({name: value for name, value in given.items() if name != "patch"})


def failing_tests(raw: Mapping[Any, Any], most: int = TESTS_MOST) -> dict[str, str]:
    """Test id -> outcome, of the tests that the report names as not passed."""
    found: dict[str, str] = {}
    for part in _sets(raw).values():
        failing = part.get("failing")
        if isinstance(failing, list | tuple):
            failing = dict.fromkeys((test for test in failing if isinstance(test, str)), "failed")
        for test, outcome in mapping(failing).items():
            if len(found) >= most:
                return found
            if isinstance(test, str):
                found.setdefault(test, outcome if isinstance(outcome, str) else "failed")
    return found


def passed_tests(raw: Mapping[Any, Any], most: int = TESTS_MOST) -> list[str] | None:
    """Ids of the tests that the report names as passed; None if it names none at all."""
    lists = [part["passed"] for part in _sets(raw).values() if "passed" in part]
    if not lists:
        return None
    found = dict.fromkeys(test for each in lists for test in items(each) if isinstance(test, str))
    return list(found)[:most]


def _sets(raw: Mapping[Any, Any]) -> dict[str, Mapping[Any, Any]]:
    """The sets of tests of a report in SWE-bench's terms: FAIL_TO_PASS, PASS_TO_PASS."""
    status = mapping(mapping(raw.get("report")).get("tests_status"))
    named = ((name, mapping(part)) for name, part in status.items())
    return {name: part for name, part in named if isinstance(name, str)}


def _counts(status: object) -> dict[str, dict[str, int | None]]:
    return {
        label(name): {
            "passed": whole(mapping(part).get("success")),
            "failed": whole(mapping(part).get("failure")),
            "not_run": whole(mapping(part).get("not_run")),
        }
        for name, part in list(mapping(status).items())[:20]
    }


def _output(given: Mapping[Any, Any]) -> Any:
    found = next((given[name] for name in _OUTPUTS if given.get(name)), None)
    return None if found is None else text_of(found, OUTPUT_BYTES)


def _rest(given: Mapping[Any, Any]) -> Any:
    odd = {
        name: given[name]
        for name in ("tests_status", *_LEFT_OUT)
        if name in given and not isinstance(given[name], Mapping | list | tuple)
    }
    rest = {name: value for name, value in given.items() if name not in _ELSEWHERE}
    return tree(rest | odd)


def _labels(value: object) -> list[str]:
    if isinstance(value, str) and value:
        return [label(value)]
    return [label(each) for each in items(value)[:100]]
