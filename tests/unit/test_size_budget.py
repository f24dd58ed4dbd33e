"""Files and functions stay small enough to read on one screen."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_queue", "workers", "producers", "envs")
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

EXCEPTIONS: set[str] = set()
"""`path` or `path:function` that may be longer, each with a comment that says why."""


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring: a contract may be as long as it must."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_modules_are_shorter_than_the_budget() -> None:
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in sources()
    }
    long = {name: size for name, size in sizes.items() if size >= MAX_MODULE_LINES}
    assert {name: size for name, size in long.items() if name not in EXCEPTIONS} == {}


def test_functions_are_shorter_than_the_budget() -> None:
    long = {
        f"{path.relative_to(ROOT).as_posix()}:{node.name}": length(node)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and length(node) >= MAX_FUNCTION_LINES
    }
    assert {name: size for name, size in long.items() if name not in EXCEPTIONS} == {}
