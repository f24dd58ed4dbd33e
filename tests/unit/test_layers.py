"""Who may import whom, and what reading results may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from source_trees import PACKAGES, ROOT, modules, nodes

pytestmark = pytest.mark.xdist_group("sources")
"""One process parses all modules."""
CELERY_SEAM = ("broker/", "queues.py", "cli/__init__.py", "workers/")
"""The only places that may import Celery; all but the last are below `hermes_queue/`."""


def imported_packages(path: Path) -> set[str]:
    """Top-level names that the file imports anywhere, also inside functions."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_celery_stays_behind_its_seam() -> None:
    strangers = {
        name
        for path in modules()
        if imported_packages(path) & {"celery", "kombu", "billiard"}
        and not (
            name := path.relative_to(ROOT).as_posix().removeprefix("hermes_queue/")
        ).startswith(CELERY_SEAM)
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
