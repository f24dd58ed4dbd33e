"""Who may import whom, and what reading results may cost."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest
from source_trees import PACKAGES, ROOT, modules, nodes

pytestmark = pytest.mark.xdist_group("sources")
"""One process parses all modules."""


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


SEAMS = {
    "fcntl": ("hermes_queue/disk/", "hermes_queue/sandbox/host/"),
    "flock": ("hermes_queue/disk/locks.py",),
    "fsync": ("hermes_queue/disk/",),
    "celery": ("hermes_queue/broker/",),
    "kombu": ("hermes_queue/broker/",),
    "billiard": ("hermes_queue/broker/",),
}
"""Name in the code -> the only places that may use it."""


@functools.cache
def names_used(path: Path) -> set[str]:
    """Attributes and imported names in the file, also inside functions."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module).split(".")[0], *(alias.name for alias in node.names)}
    return names


@pytest.mark.parametrize("name", SEAMS)
def test_celery_file_locks_and_syncs_have_one_home_each(name: str) -> None:
    strangers = {
        place
        for path in modules()
        if name in names_used(path)
        and not (place := path.relative_to(ROOT).as_posix()).startswith(SEAMS[name])
    }
    assert strangers == set()
