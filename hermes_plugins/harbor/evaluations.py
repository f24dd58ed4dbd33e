"""Tasks on which nothing may be trained: benchmarks, by their names or by a canary in a file.

Benchmarks put a canary into their files so that nobody trains on them by mistake. Both a producer
and the worker look, so that no producer can forget it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from hermes_plugins.harbor.item import GitTask, HarborItem
from hermes_plugins.harbor.task import CONFIG, INSTRUCTION, TaskFolder

_CANARY = re.compile(
    rb"canary\s+(?:GUID|string)|BENCHMARK DATA SHOULD NEVER APPEAR IN TRAINING|"
    rb"(?:harbor|terminal-bench)-canary",
    re.IGNORECASE,
)
_NAMES = re.compile(
    r"terminal-?bench(?!-?(?:pro\b|env\b))|(?:^|[/_-])tb-?[0-9]|swe-?bench|aider-?polyglot|"
    r"humaneval|gpqa|livecodebench|bigcodebench|usaco",
    re.IGNORECASE,
)
"""Datasets that others measure models with. Not: terminal-bench-pro and terminal-bench-env
(TermiGen), which are made for training."""
_FILES = 200
_EDGE_BYTES = 4096
"""Canaries stand at the beginning or the end of a file."""
_KNOWN_MAX = 4096


def is_evaluation(task: TaskFolder, item: HarborItem) -> bool:
    """Whether nothing may be trained on the task. Blocking.

    Args:
        task: the folder.
        item: the row, which may say so, and where the folder comes from.
    """
    if item.evaluation or any(_NAMES.search(name) for name in _names(task, item)):
        return True
    # A folder whose digest was not asked for may change.
    return _remembered(task.path, task.digest) if task.digest else _has_canary(task.path)


def _names(task: TaskFolder, item: HarborItem) -> Iterator[str]:
    """What task and row say about where it belongs."""
    yield item.instance_id
    if isinstance(item.task, GitTask):
        yield f"{item.task.git_url}/{item.task.path}"
    elif isinstance(item.task, str):
        yield item.task
    yield str((task.config.task or {}).get("name", ""))[:500]
    yield (task.config.source or "")[:500]


@functools.lru_cache(_KNOWN_MAX)
def _remembered(path: Path, digest: str) -> bool:
    return _has_canary(path)


def _has_canary(path: Path) -> bool:
    files = [path / CONFIG, path / INSTRUCTION, path / "README.md"]
    for name in ("tests", "solution", "environment", "steps"):
        files += sorted(each for each in (path / name).rglob("*") if each.is_file())
    return any(map(_says_so, files[:_FILES]))


def _says_so(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_EDGE_BYTES)
            size = file.seek(0, 2)
            file.seek(max(len(head), size - _EDGE_BYTES))
            return _CANARY.search(head + b"\n" + file.read(_EDGE_BYTES)) is not None
    except OSError:
        return False
