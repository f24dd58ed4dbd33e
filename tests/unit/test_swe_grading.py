"""The runner that is uploaded into slots, what its report is taken for, and the verdict."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_package import FAIL_TO_PASS, PASS_TO_PASS, sdist_row

from envs.swe.grading import slot
from envs.swe.grading.controls import DOUBT_TTL_S, RowMemory, RowRecord
from envs.swe.grading.findings import Findings, Step, SuiteResults, first_failure, reported
from envs.swe.grading.flags import find_flags
from envs.swe.grading.grader import later_limit_s
from envs.swe.grading.places import TestFunction
from envs.swe.grading.plants import Planter, View
from envs.swe.grading.slot.run_tests import MAX_KEPT_BYTES, Reports, plugins
from envs.swe.grading.suite import SuiteRun, venv_asset
from envs.swe.item import Item, SuiteRuntime

RUNNER = Path(slot.__file__).with_name("run_tests.py")
ITEM = Item.model_validate(sdist_row("0" * 64))
IDS = (*FAIL_TO_PASS, *PASS_TO_PASS)
SOLVED = SuiteRun(
    outcomes=dict.fromkeys(IDS, "passed"),
    messages={},
    ended=True,
    timed_out=False,
    exit_code=0,
    seconds=0.1,
    output="",
)
CLAMP = TestFunction.of(FAIL_TO_PASS[0])
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


def run(
    directory: Path, *arguments: str, limit_s: float = 60.0, **job: Any
) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Run the script on files of `directory`; its reports and its end record."""
    request = {
        "runner": "pytest",
        "arguments": ["-q", *arguments],
        "targets": [],
        "only": None,
        "distributions": [],
        "limit_s": limit_s,
        "longest_s": limit_s,
        "most_ids": 1_000,
        "token": "t",
        **job,
    }
    done = subprocess.run(
        [sys.executable, "-I", str(RUNNER)],
        input=json.dumps(request),
        text=True,
        cwd=directory,
        capture_output=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[:-1], lines[-1] if lines else {}


def outcomes(reports: list[dict[str, str]]) -> Mapping[str, str]:
    return {entry["id"]: entry["outcome"] for entry in reports}


# --- the runner ----------------------------------------------------------------------------


def test_the_runner_reports_every_outcome_by_exact_id(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    reports, end = run(tmp_path, "test_it.py")
    assert (end["end"], end["exit_status"], end["finished"]) == ("t", 1, True)
    assert outcomes(reports) == {
        "test_it.py::test_ok[a b$<']": "passed",
        "test_it.py::test_bad": "failed",
        "test_it.py::test_skipped": "skipped",
        "test_it.py::test_expected": "xfailed",
        "test_it.py::test_unexpected": "xpassed",
        "test_it.py::test_teardown": "error",
    }


def test_the_runner_runs_only_the_tests_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    reports, end = run(tmp_path, "test_it.py", only=["test_it.py::test_ok"])
    assert outcomes(reports) == {"test_it.py::test_ok[a b$<']": "passed"}
    assert end["exit_status"] == 0


@pytest.mark.parametrize(
    ("code", "status"),
    [("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", 137), ("os._exit(1)", 1)],
)
def test_a_run_that_is_cut_short_is_not_finished(tmp_path: Path, code: str, status: int) -> None:
    (tmp_path / "test_it.py").write_text(f"import os\ndef test_x():\n    {code}\n")
    reports, end = run(tmp_path, "test_it.py")
    assert reports == []
    assert (end["exit_status"], end["finished"], end["timed_out"]) == (status, False, False)


def test_a_run_that_takes_too_long_is_ended_with_what_it_has_reported(tmp_path: Path) -> None:
    text = "import time\ndef test_a():\n    pass\ndef test_b():\n    time.sleep(600)\n"
    (tmp_path / "test_it.py").write_text(text)
    reports, end = run(tmp_path, "test_it.py", limit_s=5.0)
    assert outcomes(reports) == {"test_it.py::test_a": "passed"}
    assert (end["timed_out"], end["finished"]) == (True, False)


def test_a_process_that_outlives_the_run_does_not_hold_it_up(tmp_path: Path) -> None:
    text = (
        "import os, time\ndef test_x():\n    if os.fork() == 0:\n        os.setsid()\n"
        "        open('pid', 'w').write(str(os.getpid()))\n        time.sleep(600)\n"
    )
    (tmp_path / "test_it.py").write_text(text)
    _, end = run(tmp_path, "test_it.py", limit_s=300.0)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert end["finished"]


def test_the_cause_of_a_missing_test_is_that_its_module_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import no_such_package\n\ndef test_a():\n    pass\n")
    (tmp_path / "test_b.py").write_text("def test_b():\n    assert [1] == [2], 'two'\n")
    reports, _ = run(tmp_path, "--continue-on-collection-errors", "test_a.py", "test_b.py")
    messages = {entry["id"]: entry["message"] for entry in reports}
    causes = [
        first_failure([test], outcomes(reports), messages)
        for test in ("test_a.py::test_a", "test_b.py::test_b", "test_b.py::test_c")
    ]
    assert causes == [
        "ModuleNotFoundError: No module named 'no_such_package'",
        "AssertionError: two",
        "missing",
    ]
    assert first_failure(["x"], {"x": "passed"}, {}) == ""


def test_the_repository_comes_first_on_the_import_path(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("import here\n\ndef test_x():\n    pass\n")
    assert run(tmp_path, "tests/test_it.py")[1]["exit_status"] == 0


def test_what_tests_print_is_kept_to_its_end_and_is_no_report(tmp_path: Path) -> None:
    forged = json.dumps({"id": "test_it.py::test_y", "outcome": "passed", "message": ""})
    text = f"import os\ndef test_x():\n    os.write(1, {forged + chr(10)!r}.encode() * 9000)\n"
    (tmp_path / "test_it.py").write_text(text)
    reports, end = run(tmp_path, "-s", "test_it.py")
    assert outcomes(reports) == {"test_it.py::test_x": "passed"}
    assert 0 < len(end["output"]) <= 8192


def test_only_plugins_of_the_named_directories_are_loaded(tmp_path: Path) -> None:
    for name, place in (("good", "trusted"), ("bad", ".")):
        metadata = tmp_path / place / f"{name}-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "entry_points.txt").write_text(f"[pytest11]\n{name} = {name}_plugin\n")
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        hook = f"def pytest_report_header():\n    return 'loaded {name}'\n"
        (tmp_path / f"{name}_plugin.py").write_text(hook)
    (tmp_path / "test_it.py").write_text("def test_x():\n    pass\n")
    assert plugins([str(tmp_path / "trusted")], []) == ["-p", "good"]
    assert plugins([str(tmp_path / "trusted")], ["-p", "no:good"]) == []
    _, end = run(tmp_path, "-v", "test_it.py")
    assert "loaded" not in end["output"]


# --- what came through the pipe -------------------------------------------------------------


def _line(test: str, outcome: str) -> bytes:
    return json.dumps({"id": test, "outcome": outcome, "message": ""}).encode() + b"\n"


@pytest.mark.parametrize("order", [("failed", "passed"), ("passed", "failed")])
def test_of_several_reports_on_one_test_the_worst_counts(order: tuple[str, str]) -> None:
    reports = Reports(100)
    reports.feed(b"".join(_line("a", outcome) for outcome in order))
    assert reports.items["a"]["outcome"] == "failed"


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000,
        b"\xff\xfe",
        b'{"id": "a"}',
        b'{"id": "a", "outcome": []}',
        b'{"id": "a", "outcome": "good"}',
        b'{"finished": "x"}',
        b'{"finished": Infinity}',
        b"7",
        b'"finished"',
    ],
)
def test_lines_that_are_no_reports_are_passed_over(line: bytes) -> None:
    reports = Reports(100)
    reports.feed(line + b"\n" + _line("b", "passed"))
    assert [*reports.items] == ["b"]
    assert (reports.finished, reports.flooded) == (None, False)


def test_a_flood_of_reports_is_noticed_and_not_kept() -> None:
    reports = Reports(100)
    for _ in range(600):
        reports.feed(b"[" * 60_000)
    assert reports.flooded
    assert reports.items == {}


def test_more_ids_than_there_can_be_are_a_flood() -> None:
    reports = Reports(100)
    reports.feed(b"".join(_line(f"a{n}", "failed") for n in range(1_000)))
    assert reports.flooded
    assert len(reports.items) == 101


def test_messages_beyond_what_a_worker_takes_are_left_out() -> None:
    reports = Reports(10_000)
    long = {"outcome": "failed", "message": "\U0001f40d" * 8_000}
    for n in range(2_000):
        reports.feed(json.dumps({"id": f"a{n}", **long}, ensure_ascii=False).encode() + b"\n")
        if reports.flooded:
            break
    kept = sum(len(json.dumps(item)) for item in reports.items.values())
    assert kept < MAX_KEPT_BYTES
    assert [*reports.items.values()][-1]["message"] == ""


class Asked(str):
    """A node id that counts how often it is compared with a beginning."""

    times = 0

    def startswith(self, *args: Any) -> bool:
        Asked.times += 1
        return super().startswith(*args)


def test_an_id_that_is_cut_is_looked_up_among_those_that_begin_like_it() -> None:
    others = {Asked(f"t.py::test_x[{n}]"): "passed" for n in range(1_000)}
    found = {Asked("t.py::test_y[a b]"): "passed", Asked("t.py::test_y[a c]"): "failed"}
    run = replace(SOLVED, outcomes={**others, **found})
    assert run.outcome("t.py::test_y[a") == "failed"
    assert run.outcome("t.py::test_z[a") == "missing"
    assert Asked.times < 10


# --- the verdict -----------------------------------------------------------------------------


def step(*planted: TestFunction) -> Step:
    return Step("all", View({}, frozenset(planted)), ITEM.test_files, IDS)


def reason(run: SuiteRun, *planted: TestFunction) -> str:
    return Findings.of(step(*planted), run).reason(run)


def test_all_tests_passed_is_resolved() -> None:
    assert reason(SOLVED) == "resolved"


@pytest.mark.parametrize("outcome", ["failed", "error", "skipped", "xfailed", "xpassed", None])
@pytest.mark.parametrize("test", [FAIL_TO_PASS[0], PASS_TO_PASS[0]])
def test_anything_but_passed_is_not_resolved(test: str, outcome: str | None) -> None:
    changed = {**SOLVED.outcomes, test: outcome or "missing"}
    if outcome is None:
        del changed[test]
    failed = replace(SOLVED, outcomes=changed, exit_code=1)
    findings = Findings.of(step(), failed)
    assert findings.reason(failed) == "tests_fail"
    assert findings.failing == {test: outcome or "missing"}


def test_a_planted_test_that_fails_is_resolved() -> None:
    planted = {**SOLVED.outcomes, **dict.fromkeys(FAIL_TO_PASS, "failed")}
    assert reason(replace(SOLVED, outcomes=planted, exit_code=1), CLAMP) == "resolved"


@pytest.mark.parametrize("outcome", ["passed", "skipped", "xfailed", "missing"])
def test_a_planted_test_that_does_not_fail_gives_a_lie_away(outcome: str) -> None:
    planted = {**SOLVED.outcomes, **dict.fromkeys(FAIL_TO_PASS, "failed")}
    planted[FAIL_TO_PASS[1]] = outcome
    assert reason(replace(SOLVED, outcomes=planted, exit_code=1), CLAMP) == "canary"


def test_planted_parameters_may_have_other_ids() -> None:
    others = {f"tests/test_clamp.py::test_clamp[{n}]": "failed" for n in range(2)}
    known = {test: how for test, how in SOLVED.outcomes.items() if test not in FAIL_TO_PASS}
    assert reason(replace(SOLVED, outcomes=known | others, exit_code=1), CLAMP) == "resolved"
    for lied in ({}, dict.fromkeys(others, "passed"), dict(list(others.items())[:1])):
        assert reason(replace(SOLVED, outcomes=known | lied), CLAMP) == "canary"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"timed_out": True, "ended": False}, "timed_out"),
        ({"ended": False}, "cut_short"),
        ({"exit_code": 3}, "cut_short"),
        ({"outcomes": {**SOLVED.outcomes, "other": "failed"}}, "canary"),
    ],
)
def test_a_run_that_cannot_be_believed_is_not_resolved(
    changes: dict[str, Any], expected: str
) -> None:
    assert reason(replace(SOLVED, **changes)) == expected


def test_tests_of_our_own_have_to_be_reported_as_they_are() -> None:
    [view, _] = Planter({}, ITEM.hidden_files, IDS, random.Random(1)).views((), ())
    ours = replace(step(), view=view)
    statuses = {f"{t.file}::{t.name}": "failed" for t in view.planted}
    statuses |= {f"{t.file}::{t.name}": "passed" for t in view.added}
    whole = replace(SOLVED, outcomes={**SOLVED.outcomes, **statuses}, exit_code=1)
    assert Findings.of(ours, whole).reason(whole) == "resolved"
    for test, outcome in statuses.items():
        other = {"failed": "passed", "passed": "failed"}[outcome]
        lied = replace(whole, outcomes={**whole.outcomes, test: other})
        assert Findings.of(ours, lied).reason(lied) == "canary"


def test_a_test_has_failed_that_failed_in_any_view_in_which_it_was_whole() -> None:
    results = SuiteResults()
    test = FAIL_TO_PASS[0]
    failed = replace(SOLVED, outcomes={**SOLVED.outcomes, test: "failed"}, exit_code=1)
    for shown, planted in ((SOLVED, ()), (failed, ()), (SOLVED, ()), (failed, (CLAMP,))):
        results.add(step(*planted), shown, Findings.of(step(*planted), shown))
    status = results.report(ITEM, "tests_fail")["tests_status"]
    assert status["FAIL_TO_PASS"] == {
        "success": 1,
        "failure": 1,
        "not_run": 0,
        "failing": {test: "failed"},
        "passed": {"names": [FAIL_TO_PASS[1]], "more": 0},
    }


def test_tests_that_did_not_run_are_counted_as_such() -> None:
    results = SuiteResults()
    first = replace(step(), test_ids=FAIL_TO_PASS)
    results.add(first, SOLVED, Findings.of(first, SOLVED))
    status = results.report(ITEM, "tests_fail")["tests_status"]
    assert status["PASS_TO_PASS"]["not_run"] == len(PASS_TO_PASS)
    assert status["PASS_TO_PASS"]["passed"] == {"names": [], "more": 0}


def test_a_view_has_the_rows_whole_limit_however_slow_the_others_were() -> None:
    """Only where the stage ends it has less, but never next to nothing."""
    assert [later_limit_s(60.0, left_s) for left_s in (900.0, 300.0, 180.0)] == [60.0] * 3
    assert later_limit_s(60.0, 150.0) == 30.0
    assert later_limit_s(60.0, 20.0) == 15.0


# --- suspicious words ------------------------------------------------------------------------


def patch(*lines: str) -> bytes:
    return ("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n" + "".join(f"+{x}\n" for x in lines)).encode()


@pytest.mark.parametrize(
    "line",
    [
        "import _pytest.runner",
        "if 'pytest' in sys.modules:",
        "frame = sys._getframe(1)",
        "gc.get_objects()",
        "os._exit(0)",
        "atexit.register(lie)",
        "open('/proc/self/fd/3')",
        "sys.settrace(f)",
        "f.__code__ = g.__code__",
        "exec(code)",
        "import ctypes",
    ],
)
def test_words_that_have_no_business_in_a_library_are_flagged(line: str) -> None:
    assert find_flags(patch(line))
    assert find_flags(patch("x = 1"), before="") == []
    assert find_flags(patch(line), before=f"# {line}\n") == []
    assert find_flags(patch(line), fix=patch(line)) == []


@pytest.mark.parametrize(
    "line",
    ["return self.evaluate(x)", "    if __name__ == '__main__':", "regex.exec_(x)", "modules = []"],
)
def test_ordinary_words_are_not_flagged(line: str) -> None:
    assert find_flags(patch(line)) == []


def test_long_lines_are_searched_as_fast_as_short_ones() -> None:
    """Each `def __eq__(` is a place where a search begins: none may go on to the line's end."""
    seconds = []
    for repeated in (1, 300):
        text = patch(*["def __eq__():" * repeated] * (9000 // repeated))
        before = time.thread_time()
        assert find_flags(text) == []
        seconds.append(time.thread_time() - before)
    assert seconds[1] < 4 * seconds[0]
    assert find_flags(patch("x = 1" * 9000 + "; sys._getframe()"))


# --- what a host remembers -------------------------------------------------------------------


def test_a_row_is_remembered_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    record = RowRecord(
        doubted_at=time.time(), unplantable=frozenset({CLAMP}), lines=((CLAMP, 3),)
    ).passing("few", {CLAMP})
    asyncio.run(RowMemory(ITEM).write(record))
    assert asyncio.run(RowMemory(ITEM).read()) == record
    other = ITEM.model_copy(update={"PASS_TO_PASS": ()})
    assert asyncio.run(RowMemory(other).read()) == RowRecord()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"passes": 1}', "[" * 100_000])
def test_a_memory_that_cannot_be_read_says_nothing(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    asyncio.run(RowMemory(ITEM).write(RowRecord()))
    [file] = tmp_path.glob("rows/*/*")
    file.write_text(content)
    assert asyncio.run(RowMemory(ITEM).read()) == RowRecord()


def test_what_speaks_against_a_row_is_forgotten_after_a_day() -> None:
    """And what was learnt under it: the fix may pass without plants only, or in whole files."""
    now = 1_700_000_000.0
    record = RowRecord(lines=(), doubted_at=now, plantless=True).passing("all", ())
    assert record.believed(now + DOUBT_TTL_S - 1) == record
    assert record.believed(now + DOUBT_TTL_S + 1) == RowRecord()
    sure = RowRecord(lines=()).passing("all", ())
    assert sure.believed(now) == sure


def test_the_fix_passes_a_test_while_another_fails_only_if_that_was_seen() -> None:
    a, b, c = (TestFunction("tests/test_x.py", f"test_{name}") for name in "abc")
    record = RowRecord()
    assert not record.fix_passes("few", (), [a])
    record = record.passing("few", {b})
    assert record.fix_passes("few", {b}, [a])
    assert record.fix_passes("few", (), [a, c])
    assert not record.fix_passes("few", {a}, [b])
    assert not record.fix_passes("few", {b, c}, [a])
    assert not record.fix_passes("all", {b}, [a])
    record = record.passing("few", {c})
    assert record.fix_passes("few", {b, c}, [a])
    assert not record.fix_passes("few", {b, c}, [a, b])
    for _ in range(200):
        record = record.passing("all", {a})
    assert len(record.passes) == 3


def test_a_planted_test_whose_file_cannot_be_collected_has_failed() -> None:
    kept = {test: "passed" for test in IDS if TestFunction.of(test) != CLAMP}
    broken = replace(SOLVED, outcomes=kept, exit_code=1)
    assert reason(broken, CLAMP) == "canary"
    for path in (CLAMP.file, CLAMP.file.rpartition("/")[0]):
        assert reason(replace(broken, outcomes={**kept, path: "error"}), CLAMP) == "resolved"


def test_only_a_run_with_a_word_on_every_test_tells_where_tests_fail() -> None:
    assert reported(step(), SOLVED)
    kept = {test: "passed" for test in IDS if TestFunction.of(test) != CLAMP}
    assert not reported(step(), replace(SOLVED, outcomes=kept))
    assert reported(step(), replace(SOLVED, outcomes={**kept, CLAMP.file: "error"}))
    assert not reported(step(), replace(SOLVED, ended=False))
    assert not reported(step(), replace(SOLVED, exit_code=137))


# --- dependencies ----------------------------------------------------------------------------


def test_equal_dependencies_share_one_environment() -> None:
    one = venv_asset(SuiteRuntime(requirements=("b==1", "a==2")), "3.11")
    assert one.key == venv_asset(SuiteRuntime(requirements=("a==2", "b==1")), "3.11").key
    assert one.key != venv_asset(SuiteRuntime(requirements=("a==2", "b==1")), "3.12").key
    assert one.key != venv_asset(SuiteRuntime(requirements=("a==2", "b==2")), "3.11").key


def test_hashes_are_required_where_they_are_given() -> None:
    pinned = SuiteRuntime(requirements=(f"a==2 --hash=sha256:{'0' * 64}",))
    assert "--require-hashes" in venv_asset(pinned, "3.11").script
    assert "--no-deps" in venv_asset(pinned, "3.11").script
    assert "--no-deps" not in venv_asset(SuiteRuntime(install=("flask",)), "3.11").script
