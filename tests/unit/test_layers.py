"""Who may import whom, and what reading results may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_queue", "workers", "producers", "envs")
CELERY_SEAM = ("broker/", "queues.py", "cli/__init__.py")
"""Below `hermes_queue/`: the only places that may import Celery."""


def imported_packages(path: Path) -> set[str]:
    """Top-level names that the file imports anywhere, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_import_contracts_are_kept() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_celery_stays_behind_its_seam() -> None:
    strangers = {
        name
        for package in PACKAGES
        if package != "workers"
        for path in (ROOT / package).rglob("*.py")
        if imported_packages(path) & {"celery", "kombu", "billiard"}
        and not (name := path.relative_to(ROOT).as_posix())
        .removeprefix("hermes_queue/")
        .startswith(CELERY_SEAM)
    }
    assert strangers == set()


@pytest.mark.parametrize(
    "module",
    ["hermes_queue", *(f"hermes_queue.{m}" for m in ("results.consume", "models", "bodies.codec"))],
)
def test_reading_results_loads_nothing_heavy(module: str) -> None:
    heavy = "{'celery', 'kombu', 'modal', 'openai', 'pyarrow', 'rich', 'fakeredis'}"
    code = f"import sys, {module}; print(*sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_prints_nothing_and_reads_no_setting(package: str) -> None:
    env = {"HERMES_QUEUE_WORKER_CONCURRENCY": "not a number", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-W", "error", "-c", f"import {package}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
