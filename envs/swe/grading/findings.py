"""One run of tests: its expected and actual results, and the sum of all runs of a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal

from envs.named_tests import clean, compact
from envs.swe.grading.places import TestFunction
from envs.swe.grading.plants import View
from envs.swe.grading.suite import SuiteRun
from envs.swe.item import Item
from envs.swe.paths import file_of

LISTED_IDS = 50
"""Number of failing ids listed in a verdict's report."""
MAX_FAILURE_CHARACTERS = 300

Reason = Literal["resolved", "tests_fail", "timed_out", "cut_short", "canary"]


@dataclass(frozen=True, slots=True)
class Step:
    """One run of tests: a view of the files, and the tests that count."""

    stage: Literal["first", "again", "all"]
    view: View
    targets: tuple[str, ...]
    test_ids: tuple[str, ...]
    """The grading tests that run in this step."""
    only: tuple[str, ...] | None = None
    """The functions that run, of all in the files; None = every one."""
    may_xfail: frozenset[str] = frozenset()
    """Tests that pass by failing as expected: SWE-bench lists them among those that pass."""

    @property
    def kind(self) -> Literal["few", "all"]:
        """Whether it runs the whole suite. Steps of one kind run the same tests."""
        return "all" if self.stage == "all" else "few"

    def without_plants(self) -> Step:
        """The same step with the original test files."""
        targets = tuple(t for t in self.targets if t in set(map(file_of, self.test_ids)))
        return replace(self, view=View({}, frozenset()), targets=targets)

    def whole_files(self) -> Step:
        """The same step with all tests of its files."""
        return replace(self, only=None)


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of a run for the tests of its step."""

    failing: dict[str, str]
    """Unplanted tests that did not pass -> their outcome; "missing" if they have none."""
    lies: frozenset[TestFunction]
    """Planted tests not reported as failures, and tests that we added and that did not pass."""

    @classmethod
    def of(cls, step: Step, run: SuiteRun) -> Findings:
        """Compare outcomes with those that the view implies."""
        failing, lies = {}, _lies_of_ours(step, run)
        for test in step.test_ids:
            outcome = run.outcome(test)
            function = TestFunction.of(test)
            if function not in step.view.planted:
                expected = outcome == "xfailed" and test in step.may_xfail
                if outcome != "passed" and not expected:
                    failing[test] = outcome
            elif outcome not in ("failed", "error") and not (
                outcome == "missing"
                and (collection_failed(function.file, run) or _all_fail(function, step, run))
            ):
                lies.add(function)
        return cls(failing, frozenset(lies))

    def reason(self, run: SuiteRun) -> Reason:
        """The verdict of this run alone."""
        if run.timed_out:
            return "timed_out"
        if not run.complete:
            return "cut_short"
        if not run.consistent or (self.lies and not self.failing):
            return "canary"
        return "tests_fail" if self.failing else "resolved"


def _all_fail(function: TestFunction, step: Step, run: SuiteRun) -> bool:
    """Whether as many tests of a planted function have failed as grade, and none has passed.

    Other values in its parameters make other ids.
    """
    outcomes = run.outcomes_of(f"{function.file}::{function.name}[")
    graded = sum(TestFunction.of(test) == function for test in step.test_ids)
    failed = sum(outcome in ("failed", "error") for outcome in outcomes)
    return failed >= graded and "passed" not in outcomes


def _lies_of_ours(step: Step, run: SuiteRun) -> set[TestFunction]:
    """Tests in files that we added beside the row's, reported with a wrong outcome."""
    beside = {test for test in step.view.planted if test.file not in map(file_of, step.test_ids)}
    expected = dict.fromkeys(step.view.added, "passed") | dict.fromkeys(beside, "failed")
    return {t for t, how in expected.items() if run.outcomes.get(f"{t.file}::{t.name}") != how}


def collection_failed(file: str, run: SuiteRun) -> bool:
    """Whether pytest could not collect this file, or a directory above it."""
    path = PurePosixPath(file)
    return any(run.outcomes.get(str(above)) == "error" for above in (path, *path.parents))


def reported(step: Step, run: SuiteRun) -> bool:
    """Whether the run was complete and reports every test of the step."""
    return run.complete and all(
        run.outcome(test) != "missing" or collection_failed(file_of(test), run)
        for test in step.test_ids
    )


def first_failure(
    tests: Sequence[str], outcomes: Mapping[str, str], messages: Mapping[str, str]
) -> str:
    """The error of the first of `tests` that did not pass, in one line; empty if all passed.

    If a test is missing because its module cannot be imported, this is the module's error. The
    words come from the code under test.
    """
    for test in tests:
        if (outcome := outcomes.get(test, "missing")) != "passed":
            text = messages.get(test) or messages.get(file_of(test)) or outcome
            lines = [line.strip() for line in text.splitlines() if line.strip()] or [outcome]
            # pytest marks the error's lines with "E"; the last of them is the cause.
            marked = [line[2:].strip() for line in lines if line.startswith("E ")]
            return (marked[-1] if marked else lines[0])[:MAX_FAILURE_CHARACTERS]
    return ""


@dataclass(slots=True)
class SuiteResults:
    """The sum of all runs of a verdict."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """Outcome per test; a test that failed in any view has failed."""
    runs: list[SuiteRun] = field(default_factory=list)

    def add(self, step: Step, run: SuiteRun, findings: Findings) -> None:
        """Add a run."""
        self.runs.append(run)
        for test in step.test_ids:
            if test in findings.failing:
                self.outcomes[test] = findings.failing[test]
            elif TestFunction.of(test) not in step.view.planted:
                self.outcomes.setdefault(test, "passed")

    def report(self, item: Item, reason: Reason) -> dict[str, Any]:
        """The part of a verdict's report about the tests, in SWE-bench's terms."""
        last = self.runs[-1]
        report: dict[str, Any] = {
            "reason": reason,
            "tests_status": {
                "FAIL_TO_PASS": self._status(item.FAIL_TO_PASS),
                "PASS_TO_PASS": self._status(item.PASS_TO_PASS),
            },
            "test_runs": len(self.runs),
            "test_seconds": round(sum(run.seconds for run in self.runs), 2),
            "test_cpu_seconds": round(sum(run.cpu_s for run in self.runs), 2),
            "exit_code": last.exit_code,
        }
        if reason == "tests_fail":
            report["first_failure"] = first_failure(item.test_ids, self.outcomes, last.messages)
        if reason != "resolved":
            report["output_tail"] = last.output[-2000:]
        return report

    def _status(self, tests: Sequence[str]) -> dict[str, Any]:
        known = {test: self.outcomes[test] for test in tests if test in self.outcomes}
        failing = {test: outcome for test, outcome in known.items() if outcome != "passed"}
        return {
            "success": len(known) - len(failing),
            "failure": len(failing),
            "not_run": len(tests) - len(known),
            "failing": {clean(test): how for test, how in list(failing.items())[:LISTED_IDS]},
            "passed": compact(test for test in known if test not in failing),
        }
