"""What each test costs: processor time with its children, and wall time. A pytest plugin.

    pytest -p test_costs --costs FILE     appends one JSON line per phase of a test to FILE
    python tests/support/test_costs.py FILE   prints a table per folder, and the dearest tests

Processes that outlive the phase that started them count where they are waited for.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from zygote import cpu_of_forks_s

__test__ = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--costs`."""
    parser.addoption("--costs", metavar="FILE", help="append what each test costs to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Find FILE from where pytest was started: a test may work in a folder of its own."""
    if config.option.costs:
        config.option.costs = str(config.invocation_params.dir / config.option.costs)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + cpu_of_forks_s()


def _measured(item: pytest.Item, phase: str) -> Iterator[None]:
    path = item.config.getoption("--costs")
    began = time.monotonic(), _cpu_s()
    yield
    if path:
        spent = {"wall_s": time.monotonic() - began[0], "cpu_s": _cpu_s() - began[1]}
        line = json.dumps({"id": item.nodeid, "phase": phase, **spent}) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, line.encode())
        os.close(descriptor)


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


def table(path: Path, dearest: int = 40) -> str:
    """Costs per folder, and of the dearest tests, as text."""
    tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        tests[entry["id"]][0] += entry["cpu_s"]
        tests[entry["id"]][1] += entry["wall_s"]
    folders: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for test, (cpu_s, wall_s) in tests.items():
        for group, name in ((folders, "/".join(test.split("/")[:2])), (files, test.split("::")[0])):
            for at, value in enumerate((1, cpu_s, wall_s)):
                group[name][at] += value
    lines = [f"{'folder':40} {'tests':>6} {'CPU s':>8} {'wall s':>8}"]
    for group in (folders, dict(sorted(files.items(), key=lambda f: -f[1][1])[:dearest])):
        for name, (count, cpu_s, wall_s) in sorted(group.items(), key=lambda f: -f[1][1]):
            lines.append(f"{name:60} {count:6.0f} {cpu_s:8.1f} {wall_s:8.1f}")
        lines.append("")
    for test, (cpu_s, wall_s) in sorted(tests.items(), key=lambda t: -t[1][0])[:dearest]:
        lines.append(f"{cpu_s:8.1f} {wall_s:8.1f}  {test}")
    total = [sum(values) for values in zip(*tests.values(), strict=True)]
    return "\n".join(
        [*lines, "", f"all: {len(tests)} tests, CPU {total[0]:.0f} s, wall {total[1]:.0f} s"]
    )


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
