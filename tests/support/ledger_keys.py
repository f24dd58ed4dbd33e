"""Names of the keys in Redis: those that the code spells out, and those that the pages list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from source_trees import ROOT, modules, nodes

_IN_LUA = re.compile(r"(?:\bprefix|\bARGV\[\d+\]) \.\. '([a-z][a-z_-]*:?)'")
_NOT_OURS = {"limit:"}
"""Begins of scans, not keys."""


def _pattern_of(name: str) -> re.Pattern[str]:
    """What keys a name as in the pages stands for: `{anything}`."""
    parts = re.split(r"\{[^}]*\}", name)
    return re.compile(".+".join(map(re.escape, parts)))


def _spelt(node: ast.AST) -> Iterator[str]:
    """Every text in an expression, with {} for what is put into it."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, ast.List | ast.Tuple | ast.Starred):
        for part in ast.iter_child_nodes(node):
            yield from _spelt(part)


def _places(tree: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Expressions that name keys: for `key(…)`, for `call(script, …)`, in lists called `keys`."""
    for node in tree:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "key":
                yield from node.args[:1]
            elif node.func.attr == "call":
                yield from node.args[1:2]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("keys"):
            yield node.value
        elif isinstance(node, ast.FunctionDef) and re.search(r"_keys?$", node.name):
            yield from (n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value)


def keys_in_python(paths: Iterable[Path]) -> dict[str, Path]:
    found = {}
    for path in paths:
        for place in _places(nodes(path)):
            found |= dict.fromkeys(_spelt(place), path)
    return found


def keys_in_lua(paths: Iterable[Path]) -> dict[str, Path]:
    found = {}
    for path in paths:
        for name in _IN_LUA.findall(path.read_text(encoding="utf-8")):
            found[name + "{}" if name.endswith(":") else name] = path
    return found


@cache
def keys_in_code() -> dict[str, Path]:
    """Every name of a key that the ledger's code spells out, and a file that does."""
    python = [path for path in modules() if not path.is_relative_to(ROOT / "envs")]
    found = keys_in_python(python) | keys_in_lua((ROOT / "hermes_queue/keyspace").rglob("*.lua"))
    return {
        name: path
        for name, path in found.items()
        if re.fullmatch(r"[a-z][a-z-]*(:.+)?", name) and name not in _NOT_OURS
    }


@cache
def rights_of_users() -> dict[str, tuple[str, dict[str, str]]]:
    """What docs/security.md says, by key: its type, and the rights of each role."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    section = page.split("### Keys, user by user")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    everything = {"worker": "rw", "operator": "rw"}
    return {
        key.strip("`"): (kind, everything | dict(zip(head[2:], rights, strict=True)))
        for key, kind, *rights in rows
    }


def is_listed(key: str) -> bool:
    """Whether docs/security.md names a key (without its prefix)."""
    return any(_pattern_of(name).fullmatch(key) for name in rights_of_users())
