"""The modules of the product and every node of their syntax trees, parsed once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_queue", "workers", "producers", "envs")


def modules() -> list[Path]:
    """The files, in order, without those of bundled tasks, which are data."""
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [path for path in found if ROOT / "producers" / "data" not in path.parents]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file; the first one is the module."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
