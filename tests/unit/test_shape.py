"""The product's shape: what it weighs, how it hangs together, and what can be read whole.

A limit that is not 0 is what was counted last. It is lowered when the count falls, and raised only
in a reviewed line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from source_trees import PACKAGES, ROOT, code_lines, modules, nodes

pytestmark = pytest.mark.xdist_group("sources")
"""One process parses all modules."""
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80

MAX_LUA_LINES = 90
MAX_SHELL_LINES = 90

CORE = ("hermes_queue", "workers", "producers", "envs")
CORE_CODE_LINES = 54_100
"""Without plugins, each of which declares its own budget."""
PARAMETERS, WIDE_FUNCTIONS = 6, 43
FIELDS, WIDE_DATACLASSES = 15, 12
IMPORTS, WIDE_MODULES = 20, 16
LONELY_LINES, LONELY_MODULES = 80, 31
PRONOUNS = ("That", "Those", "What", "Of", "Who", "Whoever", "These", "This", "As")
PRONOUN_DOCSTRINGS = 692
READER_MODULES = 51
"""Modules of ours that a reader of results loads."""

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


# --- shape ----------------------------------------------------------------------------------


def at_most(found: Sequence[str], most: int) -> None:
    """Name what is beyond the limit, and demand that the limit follows what was made better."""
    assert len(found) <= most, "\n".join(found)
    assert len(found) >= most * 0.9 - 2, f"lower the limit to {len(found)}"


@cache
def imports() -> dict[str, set[str]]:
    """The modules of ours that each module imports, by dotted names."""
    names = {dotted(path): path for path in modules()}

    def ours(name: str) -> str:
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name

    found: dict[str, set[str]] = {}
    for name, path in names.items():
        wanted: set[str] = set()
        for node in nodes(path):
            if isinstance(node, ast.Import):
                wanted |= {ours(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                wanted |= {ours(f"{node.module}.{alias.name}") for alias in node.names}
        found[name] = wanted - {"", name}
    return found


def dotted(path: Path) -> str:
    name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


def test_the_core_keeps_its_budget_of_code_lines() -> None:
    core = [path for path in modules() if path.relative_to(ROOT).parts[0] in CORE]
    spent = sum(code_lines(path.read_text(encoding="utf-8")) for path in core)
    assert CORE_CODE_LINES * 0.98 <= spent <= CORE_CODE_LINES


def test_a_function_takes_few_parameters() -> None:
    wide = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name} takes {count}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (count := len(parameters(node))) > PARAMETERS
    ]
    at_most(wide, WIDE_FUNCTIONS)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return [each.arg for each in given if each.arg not in ("self", "cls")]


def test_a_dataclass_has_few_fields() -> None:
    wide = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name} has {count}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        if any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        if (count := sum(isinstance(each, ast.AnnAssign) for each in node.body)) > FIELDS
    ]
    at_most(wide, WIDE_DATACLASSES)


def test_a_module_imports_few_of_ours() -> None:
    wide = [
        f"{name} imports {len(them)}" for name, them in imports().items() if len(them) > IMPORTS
    ]
    at_most(wide, WIDE_MODULES)


def test_a_small_module_with_one_user_beside_it_is_part_of_that() -> None:
    users: dict[str, set[str]] = {}
    for name, wanted in imports().items():
        for each in wanted:
            users.setdefault(each, set()).add(name)
    lonely = []
    for path in modules():
        name = dotted(path)
        by = users.get(name, set())
        if path.name == "__init__.py" or len(by) != 1:
            continue
        beside = next(iter(by)).rpartition(".")[0] == name.rpartition(".")[0]
        if beside and code_lines(path.read_text(encoding="utf-8")) < LONELY_LINES:
            lonely.append(name)
    at_most(lonely, LONELY_MODULES)


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.value.value[:40]!r}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str) and node.value.value.split(" ")[0] in PRONOUNS
    ]
    at_most(found, PRONOUN_DOCSTRINGS)


def test_a_reader_of_results_loads_little_of_ours() -> None:
    code = (
        "import sys, hermes_queue; hermes_queue.consume; import hermes_queue.sinks.datasets.jsonl\n"
        f"print(*(name for name in sys.modules if name.split('.')[0] in {CORE!r}))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert len(shown.stdout.split()) <= READER_MODULES, shown.stdout
