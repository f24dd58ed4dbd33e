"""The plugin behind the cost table of `make test`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_costs import Budget, Cost, excesses, loop_s, read, slow_reason

SUPPORT = Path(__file__).parents[1] / "support"
LEAVING = "def test_leaving(monkeypatch, tmp_path):\n    monkeypatch.chdir(tmp_path)\n"


def test_a_test_that_leaves_the_folder_is_measured_in_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "test_costs", "--costs", "made/costs.jsonl"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = (tmp_path / "made" / "costs.jsonl").read_text().splitlines()
    assert json.loads(lines.pop(0))["loop_s"] > 0
    assert [json.loads(line)["phase"] for line in lines] == ["setup", "call", "teardown"]
    tests, _ = read(tmp_path / "made" / "costs.jsonl")
    assert [cost.tests for cost in tests.values()] == [1]


BUDGET = Budget(loop_s=0.02, test_cpu_s=10, folder_cpu_s={"unit": 30, "e2e": 100})


def cost(cpu_s: float, slow: str | None = None) -> Cost:
    return Cost(tests=1, cpu_s=cpu_s, call_cpu_s=cpu_s, slow=slow)


def test_a_folder_above_its_budget_is_named_with_its_dearest_tests() -> None:
    tests = {"tests/unit/a.py::one": cost(9), "tests/unit/a.py::two": cost(8)}
    tests["tests/e2e/b.py::three"] = cost(40, "a worker")
    assert excesses(tests, 0.02, BUDGET) == []
    tests["tests/unit/a.py::four"] = cost(14, "a server")
    [excess] = excesses(tests, 0.02, BUDGET)
    assert excess.startswith("tests/unit took 31 CPU s of the 30 that it may")
    assert [line.split()[1][-4:] for line in excess.splitlines()[1:]] == ["four", ":one", ":two"]


def test_a_machine_that_is_twice_as_slow_may_take_twice_as_long() -> None:
    tests = {f"tests/unit/a.py::{number}": cost(9) for number in range(6)}
    assert excesses(tests, 0.04, BUDGET) == []
    assert "took 54 CPU s" in excesses(tests, 0.02, BUDGET)[0]
    assert loop_s() > 0


def test_a_machine_with_a_faster_loop_has_the_same_budgets() -> None:
    tests = {f"tests/unit/a.py::{number}": cost(9) for number in range(3)}
    assert excesses(tests, 0.01, BUDGET) == []


def test_a_dear_test_has_to_be_marked_as_slow_and_a_new_folder_to_have_a_budget() -> None:
    [unmarked] = excesses({"tests/e2e/a.py::one": cost(12)}, None, BUDGET)
    assert 'tests/e2e/a.py::one took 12.0 CPU s; above 10 it needs @pytest.mark.slow("' in unmarked
    [unknown] = excesses({"tests/new/a.py::one": cost(1)}, None, BUDGET)
    assert "tests/new has no budget" in unknown


def test_what_a_module_shares_is_no_reason_to_mark_the_test_that_came_first() -> None:
    shared = Cost(tests=1, cpu_s=20, call_cpu_s=1)
    assert excesses({"tests/e2e/a.py::one": shared}, None, BUDGET) == []


def test_every_folder_of_tests_has_a_budget() -> None:
    folders = {path.parent.name for path in (SUPPORT.parent).glob("*/test_*.py")}
    assert folders - {
        "agents",
        "builds",
        "engines",
        "failover",
        "harbor",
        "kubernetes",
        "live",
        "support",
        "trainers",
    } == set(Budget.of_project().folder_cpu_s)


@pytest.mark.parametrize("arguments", [(), ("",), (7,), ("a", "b")])
def test_a_slow_mark_without_a_reason_is_refused(
    request: pytest.FixtureRequest, arguments: tuple[object, ...]
) -> None:
    request.node.add_marker(pytest.mark.slow(*arguments))
    with pytest.raises(pytest.UsageError, match="what it waits for"):
        slow_reason(request.node)


def test_a_slow_mark_gives_its_reason(request: pytest.FixtureRequest) -> None:
    assert slow_reason(request.node) is None
    request.node.add_marker(pytest.mark.slow("a lease to end"))
    assert slow_reason(request.node) == "a lease to end"
