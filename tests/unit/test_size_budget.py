"""Files and functions stay small enough to be read whole."""

from __future__ import annotations

import ast
import re

import pytest
from source_trees import PACKAGES, ROOT, modules, nodes

pytestmark = pytest.mark.xdist_group("sources")
"""One process parses all modules."""
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80

MAX_LUA_LINES = 90
MAX_SHELL_LINES = 90

EXCEPTIONS: set[str] = {
    # One program that a sandbox receives as text: it cannot source a second file there.
    "hermes_queue/sandbox/modal/slot.sh",
    # A corpus: one short script after the other.
    "hermes_plugins/harbor/cheats.py",
}
"""`path` or `path:function` that may be longer, each with a comment that says why."""


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
        for path in modules()
    }
    long = {name: size for name, size in sizes.items() if size >= MAX_MODULE_LINES}
    assert {name: size for name, size in long.items() if name not in EXCEPTIONS} == {}


def test_functions_are_shorter_than_the_budget() -> None:
    long = {
        f"{path.relative_to(ROOT).as_posix()}:{node.name}": length(node)
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and length(node) >= MAX_FUNCTION_LINES
    }
    assert {name: size for name, size in long.items() if name not in EXCEPTIONS} == {}


def lines_of(ending: str) -> dict[str, list[str]]:
    """The lines of every file of the product with this ending, by path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").splitlines()
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob(f"*{ending}"))
    }


@pytest.mark.parametrize(("ending", "most"), [(".lua", MAX_LUA_LINES), (".sh", MAX_SHELL_LINES)])
def test_scripts_are_shorter_than_the_budget(ending: str, most: int) -> None:
    sizes = {name: len(lines) for name, lines in lines_of(ending).items()}
    assert sizes
    long = {name: size for name, size in sizes.items() if size > most}
    assert {name: size for name, size in long.items() if name not in EXCEPTIONS} == {}


def test_lua_names_its_keys_and_arguments() -> None:
    numbered = {
        f"{name}:{number}": line
        for name, lines in lines_of(".lua").items()
        for number, line in enumerate(lines, 1)
        if re.search(r"\b(KEYS|ARGV)\b", line)
    }
    assert numbered == {}, "the header names them, see hermes_queue/keyspace/scripts.py"
