"""A pytest plugin that measures each test: processor time with its children, and wall time.

    pytest -p test_costs --costs FILE     appends one JSON line per phase of a test to FILE
    python tests/support/test_costs.py FILE   prints tables, and fails above the budget of a folder

The budgets are in `pyproject.toml`. Machines differ, and one that is busy is slower: a loop of
known work is timed during the run, and raises them there. A machine with a faster loop has the same
budgets, because the part of the costs that is the kernel's and the disk's is not faster with it.
Processes that outlive the phase that started them count where they are waited for.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from zygote import cpu_of_forks_s

__test__ = False

LOOP_EVERY_S = 60.0
DEAREST = 40

_loop_due = 0.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--costs`."""
    parser.addoption("--costs", metavar="FILE", help="append what each test costs to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Resolve FILE where pytest was started, because a test may change its directory."""
    if config.option.costs:
        config.option.costs = str(config.invocation_params.dir / config.option.costs)


def slow_reason(item: pytest.Item) -> str | None:
    """The reason of a test's mark `slow`; None = it is not marked.

    Raises:
        pytest.UsageError: the mark has no reason.
    """
    mark = item.get_closest_marker("slow")
    if mark is None:
        return None
    if mark.kwargs or len(mark.args) != 1 or not isinstance(mark.args[0], str) or not mark.args[0]:
        raise pytest.UsageError(f'{item.nodeid}: write @pytest.mark.slow("what it waits for")')
    return str(mark.args[0])


def loop_s() -> float:
    """The processor time that known work takes here and now, in seconds."""
    began = time.process_time()
    words: dict[str, int] = {}
    for number in range(60_000):
        word = str(number % 997)
        words[word] = words.get(word, 0) + len(word)
    json.loads(json.dumps([words] * 20))
    return time.process_time() - began


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + cpu_of_forks_s()


def _append(path: str, entry: Mapping[str, object]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (json.dumps(entry) + "\n").encode())
    os.close(descriptor)


def _time_the_loop(path: str) -> None:
    global _loop_due
    if time.monotonic() >= _loop_due:
        _append(path, {"loop_s": loop_s()})
        _loop_due = time.monotonic() + LOOP_EVERY_S


def _measured(item: pytest.Item, phase: str) -> Iterator[None]:
    path = item.config.getoption("--costs")
    if not path:
        yield
        return
    entry: dict[str, object] = {"id": item.nodeid, "phase": phase}
    if phase == "setup":
        _time_the_loop(path)
        entry["slow"] = slow_reason(item)
    began = time.monotonic(), _cpu_s()
    yield
    entry |= {"wall_s": time.monotonic() - began[0], "cpu_s": _cpu_s() - began[1]}
    _append(path, entry)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Measure the fixtures of a test as they are made."""
    yield from _measured(item, "setup")


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the test itself."""
    yield from _measured(item, "call")


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Measure the fixtures of a test as they end."""
    yield from _measured(item, "teardown")


@dataclass
class Cost:
    """Cost of one test, or of several together."""

    tests: int = 0
    cpu_s: float = 0.0
    call_cpu_s: float = 0.0
    """Without fixtures, which the first test that needs one pays for all."""
    wall_s: float = 0.0
    slow: str | None = None

    def add(self, other: Cost) -> None:
        """Count `other` in."""
        self.tests += other.tests
        self.cpu_s += other.cpu_s
        self.call_cpu_s += other.call_cpu_s
        self.wall_s += other.wall_s


@dataclass(frozen=True)
class Budget:
    """Limits of costs on a machine where the known work takes `loop_s`."""

    loop_s: float
    test_cpu_s: float
    """Limit of a test that is not marked `slow`, without its fixtures."""
    folder_cpu_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_project(cls) -> Budget:
        """The one in `pyproject.toml`."""
        text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        return cls(**tomllib.loads(text)["tool"]["test_costs"])


def read(path: Path) -> tuple[dict[str, Cost], float | None]:
    """The cost of each test by its id, and the typical time of the loop; None = it did not run."""
    tests: dict[str, Cost] = {}
    loops = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "loop_s" in entry:
            loops.append(entry["loop_s"])
            continue
        cpu_s, wall_s, called = entry["cpu_s"], entry["wall_s"], entry["phase"] == "call"
        cost = tests.setdefault(entry["id"], Cost(tests=1, slow=entry.get("slow")))
        cost.add(Cost(cpu_s=cpu_s, call_cpu_s=cpu_s if called else 0.0, wall_s=wall_s))
    return tests, statistics.median(loops) if loops else None


def _folder(test: str) -> str:
    return test.split("/")[1] if test.startswith("tests/") else test.partition("/")[0]


def _dearest_first(costs: Mapping[str, Cost]) -> list[tuple[str, Cost]]:
    return sorted(costs.items(), key=lambda each: -each[1].cpu_s)


def excesses(tests: Mapping[str, Cost], loop_s: float | None, budget: Budget) -> list[str]:
    """One line for each test or folder above its limit."""
    slowness = max(1.0, (loop_s or budget.loop_s) / budget.loop_s)
    folders: dict[str, dict[str, Cost]] = defaultdict(dict)
    for test, cost in tests.items():
        folders[_folder(test)][test] = cost
    found = []
    for folder, members in sorted(folders.items()):
        if folder not in budget.folder_cpu_s:
            found.append(f"tests/{folder} has no budget: give it one in pyproject.toml")
            continue
        spent_s = sum(cost.cpu_s for cost in members.values()) / slowness
        if spent_s > (allowed_s := budget.folder_cpu_s[folder]):
            names = [f"\n    {cost.cpu_s:6.1f}  {t}" for t, cost in _dearest_first(members)[:5]]
            found.append(
                f"tests/{folder} took {spent_s:.0f} CPU s of the {allowed_s:.0f} that it may "
                f"(this machine's slowness, {slowness:.2f}, is taken out). Make its dearest tests "
                "cheaper, or raise its budget in pyproject.toml and say why:" + "".join(names)
            )
    for test, cost in _dearest_first(tests):
        if cost.slow is None and cost.call_cpu_s / slowness > budget.test_cpu_s:
            found.append(
                f"{test} took {cost.call_cpu_s / slowness:.1f} CPU s; above "
                f'{budget.test_cpu_s:.0f} it needs @pytest.mark.slow("what it waits for")'
            )
    return found


def table(tests: Mapping[str, Cost]) -> str:
    """Costs per folder, of the dearest files and of the dearest tests, as text."""
    folders: dict[str, Cost] = defaultdict(Cost)
    files: dict[str, Cost] = defaultdict(Cost)
    total = Cost()
    for test, cost in tests.items():
        folders["/".join(test.split("/")[:2])].add(cost)
        files[test.split("::")[0]].add(cost)
        total.add(cost)
    lines = [f"{'folder':60} {'tests':>6} {'CPU s':>8} {'wall s':>8}"]
    for group in (folders, files):
        for name, cost in _dearest_first(group)[:DEAREST]:
            lines.append(f"{name:60} {cost.tests:6} {cost.cpu_s:8.1f} {cost.wall_s:8.1f}")
        lines.append("")
    for test, cost in _dearest_first(tests)[:DEAREST]:
        lines.append(f"{cost.cpu_s:8.1f} {cost.wall_s:8.1f}  {test}")
    lines += ["", f"all: {total.tests} tests, CPU {total.cpu_s:.0f} s, wall {total.wall_s:.0f} s"]
    return "\n".join(lines)


def main(path: Path) -> int:
    """Print the tables and what is above its budget; 1 if anything is."""
    tests, loop_s = read(path)
    print(table(tests))
    print(f"the loop of known work took {loop_s or 0:.4f} s")
    found = excesses(tests, loop_s, Budget.of_project())
    for line in found:
        print(f"error: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
