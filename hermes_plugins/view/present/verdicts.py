"""What a verifier says of its score: reason, tests, output, what it left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_plugins.view.present.shapes import items, mapping, tree, whole
from hermes_plugins.view.present.texts import text_of
from hermes_queue.terminal.escapes import label

TESTS_MOST = 2000
PATHS_MOST = 500
OUTPUT_BYTES = 64 << 10
_NAME_MOST = 500
_OUTPUTS = ("output_tail", "output", "test_output", "stdout")
_LEFT_OUT = ("dropped", "left_out", "dropped_links")
_LISTS = ("flags", "suspect", *_LEFT_OUT)
_SHOWN = frozenset({"reason", "patch", "first_failure", "dropped_count"})


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
    first, output = given.get("first_failure"), _output_key(given)
    return {
        "reason": label(given.get("reason")),
        "failed": [label(test, _NAME_MOST) for test in outcomes],
        "outcomes": {label(test, _NAME_MOST): label(each) for test, each in outcomes.items()},
        "passed": None if passed is None else [label(test, _NAME_MOST) for test in passed],
        "counts": _counts(raw),
        "first_failure": None if first is None else text_of(first, OUTPUT_BYTES),
        "output": None if output is None else text_of(given[output], OUTPUT_BYTES),
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
    for part in sets_of_tests(raw).values():
        for test, outcome in failing_of(part).items():
            if len(found) >= most:
                return found
            found.setdefault(test, outcome)
    return found


def passed_tests(raw: Mapping[Any, Any], most: int = TESTS_MOST) -> list[str] | None:
    """Ids of the tests that the report names as passed; None if it names none at all."""
    lists = [names_of(part["passed"]) for part in sets_of_tests(raw).values() if "passed" in part]
    if not lists:
        return None
    return list(dict.fromkeys(test for names in lists for test in names))[:most]


def sets_of_tests(raw: Mapping[Any, Any]) -> dict[str, Mapping[Any, Any]]:
    """The sets of tests in a report, as it has them.

    In SWE-bench's terms FAIL_TO_PASS and PASS_TO_PASS; `tests` where the tests name themselves.
    """
    report = mapping(raw.get("report"))
    named = {**mapping(report.get("tests_status"))}
    own = mapping(report.get("tests"))
    if _name_themselves(own):
        failed = names_of(own.get("failed"))
        named["tests"] = {**own, "failing": dict.fromkeys(failed, "failed")}
    return {name: mapping(part) for name, part in named.items() if isinstance(name, str)}


def _name_themselves(tests: object) -> bool:
    return bool(mapping(tests).keys() & {"passed", "failed"})


def failing_of(part: Mapping[Any, Any]) -> dict[str, str]:
    """Test id -> outcome, of the failing tests of a set."""
    failing = part.get("failing")
    if not isinstance(failing, Mapping):
        return dict.fromkeys(names_of(failing), "failed")
    return {
        test: outcome if isinstance(outcome, str) else "failed"
        for test, outcome in failing.items()
        if isinstance(test, str)
    }


def names_of(value: object) -> list[str]:
    """Names in a list, or in `{"names": [...], "more": n}`."""
    listed = mapping(value).get("names") if isinstance(value, Mapping) else value
    return [name for name in items(listed) if isinstance(name, str)]


def _counts(raw: Mapping[Any, Any]) -> dict[str, dict[str, int | None]]:
    return {label(name): _counted(part) for name, part in list(sets_of_tests(raw).items())[:20]}


def _counted(part: Mapping[Any, Any]) -> dict[str, int | None]:
    """As the report counted them, else as many as it names."""
    return {
        "passed": _number(part, "success", "passed"),
        "failed": _number(part, "failure", "failed"),
        "not_run": whole(part.get("not_run")),
    }


def _number(part: Mapping[Any, Any], count: str, names: str) -> int | None:
    if (known := whole(part.get(count))) is not None or names not in part:
        return known
    return len(names_of(part[names])) + (whole(mapping(part[names]).get("more")) or 0)


def _output_key(given: Mapping[Any, Any]) -> str | None:
    return next((name for name in _OUTPUTS if given.get(name)), None)


def _rest(given: Mapping[Any, Any]) -> Any:
    """What no other part shows, and what has a type that no other part can show."""
    shown = _SHOWN | {name for name in _LISTS if isinstance(given.get(name), list | tuple)}
    shown |= (
        {"tests"} if "tests" in sets_of_tests({"report": {"tests": given.get("tests")}}) else set()
    )
    shown |= {"tests_status"} if isinstance(given.get("tests_status"), Mapping) else set()
    shown |= {_output_key(given) or ""}
    return tree({name: value for name, value in given.items() if name not in shown})


def _labels(value: object) -> list[str]:
    return [label(each) for each in items(value)[:100]]
