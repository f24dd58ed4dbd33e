"""Names of tests in reports: bounded, clean, and never more than an explanation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envs.named_tests import BYTES_MAX, COUNT_MAX, NAME_BYTES_MAX, compact
from hermes_plugins.harbor.grading.testrun import NAMED_MAX_BYTES, of_ctrf, of_summary, report_of


def ctrf(*tests: Any) -> bytes:
    return json.dumps({"results": {"tests": list(tests)}}).encode()


def test_a_set_keeps_the_order_and_has_each_name_once() -> None:
    assert compact(["b", "a", "b"]) == {"names": ["b", "a"], "more": 0}


@pytest.mark.parametrize("name", ["test_x", "y" * NAME_BYTES_MAX, "\N{SNOWMAN}" * 100])
def test_however_many_names_there_are_a_set_is_bounded_and_counts_the_rest(name: str) -> None:
    names = [f"{number:05}{name}"[:NAME_BYTES_MAX] for number in range(5000)]
    found = compact(names)
    assert len(found["names"]) <= COUNT_MAX
    assert sum(len(each.encode()) for each in found["names"]) <= BYTES_MAX
    assert len(found["names"]) + found["more"] == 5000


def test_a_name_that_is_too_long_is_counted_and_not_cut() -> None:
    assert compact(["x" * (NAME_BYTES_MAX + 1), "y"]) == {"names": ["y"], "more": 1}


def test_what_cannot_be_printed_is_escaped() -> None:
    [name] = compact(["a\x1b[31m\u202e\ud800\n"])["names"]
    assert name == r"a\x1b[31m\u202e\ud800\n"


def test_a_ctrf_report_names_tests_and_the_worse_of_two_outcomes_counts() -> None:
    twice = [{"name": "a", "status": how} for how in ("failed", "passed")]
    others = [{"name": "b", "status": "passed"}, {"name": "c", "status": "skipped"}]
    tests = report_of("ctrf", of_ctrf(ctrf(*twice, *others)))["tests"]
    assert tests["passed"] == {"names": ["b"], "more": 0}
    assert tests["failed"] == {"names": ["a"], "more": 0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"null",
        b'{"results": 1}',
        ctrf(1),
        ctrf({"name": "a"}),
        ctrf({"name": ["a"], "status": "passed"}),
        ctrf({"name": "a", "status": {}}),
        b" " * (NAMED_MAX_BYTES + 1),
    ],
)
def test_anything_else_names_no_test(content: bytes) -> None:
    assert report_of("ctrf", of_ctrf(content)) == {}


def test_the_short_summary_of_pytest_names_tests() -> None:
    summary = "PASSED t.py::a[1 - 2]\nFAILED t.py::b - assert 1 == 2\nERROR t.py\n"
    names = {"t.py::a[1 - 2]": "passed", "t.py::b": "failed", "t.py": "failed"}
    assert of_summary(f"x\n== short test summary info ==\n{summary}== 1 failed ==\n") == names
    assert of_summary(f"of the heading ==\n{summary}== 1 failed ==\n") == names  # cut


def test_what_a_tested_program_prints_names_no_tests() -> None:
    printed = "== PASSES ==\nERROR reading x\nFAILED 3 times\n"
    summary = "== short test summary info ==\nPASSED t.py::a\n== 1 passed ==\n"
    assert of_summary(printed + summary + "ERROR at the end\n") == {"t.py::a": "passed"}
    assert of_summary("ok\nERROR reading x\n") == {}
