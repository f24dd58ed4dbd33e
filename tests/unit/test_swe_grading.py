"""The runner that is uploaded into slots, and the verdict on its report."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sample_package import FAIL_TO_PASS, PASS_TO_PASS, sdist_row

from envs.swe import slot
from envs.swe.failures import first_failure
from envs.swe.grading import Canary, SuiteRun, judge, venv_asset
from envs.swe.item import Item, Runtime

RUNNER = Path(slot.__file__).with_name("run_tests.py")
ITEM = Item.model_validate(sdist_row("0" * 64))
SOLVED = SuiteRun(
    outcomes=dict.fromkeys((*FAIL_TO_PASS, *PASS_TO_PASS), "passed"),
    messages={},
    complete=True,
    truthful=True,
    timed_out=False,
    exit_code=1,
    seconds=0.1,
    output="",
)
SUITE = """import pytest


@pytest.mark.parametrize("x", [pytest.param(1, id="a b$<'")])
def test_ok(x):
    pass


def test_bad():
    assert 1 == 2


@pytest.mark.skip
def test_skipped():
    pass


@pytest.mark.xfail
def test_expected():
    assert False


@pytest.mark.xfail
def test_unexpected():
    pass


@pytest.fixture
def broken():
    yield
    raise RuntimeError


def test_teardown(broken):
    pass
"""


def run(directory: Path, *arguments: str) -> tuple[list[dict[str, str]], int]:
    """Run the script on files of `directory`; its report and exit code."""
    job = {"arguments": ["-q", *arguments], "report": str(directory / "report"), "token": "t"}
    done = subprocess.run(
        [sys.executable, str(RUNNER)],
        input=json.dumps(job),
        text=True,
        cwd=directory,
        capture_output=True,
    )
    path = directory / "report"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines], done.returncode


def test_the_runner_reports_every_outcome_by_exact_id(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    report, code = run(tmp_path, "test_it.py")
    assert code == 1
    assert report[-1] == {"end": "t", "exit_status": 1}
    assert {entry["id"]: entry["outcome"] for entry in report[:-1]} == {
        "test_it.py::test_ok[a b$<']": "passed",
        "test_it.py::test_bad": "failed",
        "test_it.py::test_skipped": "skipped",
        "test_it.py::test_expected": "xfailed",
        "test_it.py::test_unexpected": "xpassed",
        "test_it.py::test_teardown": "error",
    }


def test_the_cause_of_a_missing_test_is_that_its_module_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import no_such_package\n\ndef test_a():\n    pass\n")
    (tmp_path / "test_b.py").write_text("def test_b():\n    assert [1] == [2], 'two'\n")
    report, _ = run(tmp_path, "--continue-on-collection-errors", "test_a.py", "test_b.py")
    outcomes = {entry["id"]: entry["outcome"] for entry in report[:-1]}
    messages = {entry["id"]: entry["message"] for entry in report[:-1]}
    causes = [
        first_failure([test], outcomes, messages)
        for test in ("test_a.py::test_a", "test_b.py::test_b", "test_b.py::test_c")
    ]
    assert causes == [
        "ModuleNotFoundError: No module named 'no_such_package'",
        "AssertionError: two",
        "missing",
    ]
    assert first_failure(["x"], {"x": "passed"}, {}) == ""


def test_the_runner_leaves_no_end_record_when_it_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import os\ndef test_x():\n    os._exit(0)\n")
    assert run(tmp_path, "test_it.py") == ([], 0)


def test_the_repository_comes_first_on_the_import_path(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("import here\n\ndef test_x():\n    pass\n")
    assert run(tmp_path, "tests/test_it.py")[1] == 0


def test_all_tests_passed_is_resolved() -> None:
    assert judge(ITEM, SOLVED)[0] == "resolved"


@pytest.mark.parametrize("outcome", ["failed", "error", "skipped", "xfailed", "xpassed", None])
@pytest.mark.parametrize("test", [FAIL_TO_PASS[0], PASS_TO_PASS[0]])
def test_anything_but_passed_is_not_resolved(test: str, outcome: str | None) -> None:
    outcomes = {**SOLVED.outcomes, test: outcome}
    if outcome is None:
        del outcomes[test]
    reason, status = judge(ITEM, replace(SOLVED, outcomes=outcomes))
    assert reason == "tests_fail"
    failing = status["FAIL_TO_PASS"]["failing"] | status["PASS_TO_PASS"]["failing"]
    assert failing == {test: outcome or "missing"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"timed_out": True, "complete": False}, "timed_out"),
        ({"complete": False}, "cut_short"),
        ({"truthful": False}, "canary"),
    ],
)
def test_a_run_that_cannot_be_believed_is_not_resolved(
    changes: dict[str, bool], reason: str
) -> None:
    assert judge(ITEM, replace(SOLVED, **changes))[0] == reason


def test_canaries_lie_beside_the_tests_under_names_of_their_own() -> None:
    one, two = Canary.beside("tests/test_a.py"), Canary.beside("tests")
    assert one.file.startswith("tests/test_")
    assert two.file.startswith("tests/test_")
    assert len({one.file, two.file, one.passing, one.failing, two.passing}) == 5


def test_canaries_must_be_reported_as_they_are() -> None:
    canary = Canary.beside("tests/test_a.py")
    good, bad = f"{canary.file}::{canary.passing}", f"{canary.file}::{canary.failing}"
    assert canary.sings({good: "passed", bad: "failed"})
    assert not canary.sings({good: "passed", bad: "passed"})
    assert not canary.sings({good: "passed"})


def test_equal_dependencies_share_one_environment() -> None:
    one = venv_asset(Runtime(requirements=("b==1", "a==2")), "3.11")
    assert one.key == venv_asset(Runtime(requirements=("a==2", "b==1")), "3.11").key
    assert one.key != venv_asset(Runtime(requirements=("a==2", "b==1")), "3.12").key
    assert one.key != venv_asset(Runtime(requirements=("a==2", "b==2")), "3.11").key


def test_hashes_are_required_where_they_are_given() -> None:
    pinned = Runtime(requirements=(f"a==2 --hash=sha256:{'0' * 64}",))
    assert "--require-hashes" in venv_asset(pinned, "3.11").script
    assert "--no-deps" in venv_asset(pinned, "3.11").script
    assert "--no-deps" not in venv_asset(Runtime(install=("flask",)), "3.11").script
