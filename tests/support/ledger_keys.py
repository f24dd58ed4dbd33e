"""Names of the keys in Redis that the code spells out, to be held against the table of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from source_trees import ROOT, modules, nodes

from hermes_queue.keyspace import scripts
from hermes_queue.keyspace.keys import keys

_IN_LUA = re.compile(r"\bprefix \.\. '([a-z][a-z_-]*(?::[a-z_-]+)*:?)'")
_NOT_OURS = {"limit:", "flights:"}
"""Begins of scans, not keys."""


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
    """Expressions that name keys: for `key(…)` and `hash_fields(…)`, in lists called `keys`."""
    for node in tree:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("key", "hash_fields"):
                yield from node.args[:1]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("keys"):
            yield node.value
        elif isinstance(node, ast.FunctionDef) and re.search(r"_keys?$", node.name):
            yield from (n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value)


def keys_in_python(paths: Iterable[Path]) -> dict[str, str]:
    found = {}
    for path in paths:
        for place in _places(nodes(path)):
            found |= dict.fromkeys(_spelt(place), path.name)
    return found


def keys_in_lua() -> dict[str, str]:
    """Those of the headers, and those that a script puts together."""
    found = {}
    for name in scripts.names():
        script = scripts.script(name)
        for part in script.keys:
            if part.fields is None:
                found[re.sub(r"\{[^}]*\}", "{}", part.pattern)] = name
        for begin in _IN_LUA.findall(script.source):
            found[begin + "{}" if begin.endswith(":") else begin] = name
    return found


@cache
def keys_in_code() -> dict[str, str]:
    """Every name of a key that the ledger's code spells out, and a file that does."""
    python = [path for path in modules() if not path.is_relative_to(ROOT / "envs")]
    found = keys_in_python(python) | keys_in_lua()
    return {
        name: path
        for name, path in found.items()
        if re.fullmatch(r"[a-z][a-z-]*(:.+)?", name) and name not in _NOT_OURS
    }


def is_listed(key: str) -> bool:
    """Whether the key (without its prefix) has a row."""
    return any(each.matches(key) for each in keys())
