"""Values that are literals in Python source. Nothing is run.

Values that need code to run are left out, never guessed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hermes_queue.syntax import parse_module

MAX_SOURCE_BYTES = 512 << 10
_DEPTH = 20
"""Depth to which expressions, and names that stand for others, are followed."""


class _NoLiteral(Exception):
    """The expression is not only literals."""


def _parse(source: str) -> ast.Module:
    """The syntax tree; empty if the source is not Python, or too large."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return parse_module(source if len(source) <= MAX_SOURCE_BYTES else "")
    return ast.Module([], [])


def assignments(source: str) -> dict[str, Any]:
    """Name -> value of the module's assignments of literals; the last one counts."""
    return _assigned(_parse(source))


def setup_arguments(source: str) -> dict[str, Any]:
    """The keyword arguments of a setup.py's call of `setup` that are literals."""
    tree = _parse(source)
    names = _assigned(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found: dict[str, Any] = {}
    for keyword in (k for call in calls if _called(call.func) == "setup" for k in call.keywords):
        with suppress(_NoLiteral):
            value = _value(keyword.value, names)
            if keyword.arg is not None:
                found[keyword.arg] = value
            elif isinstance(value, dict):
                found.update({key: part for key, part in value.items() if isinstance(key, str)})
    return found


def _called(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _assigned(tree: ast.Module) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                names.pop(target.id, None)
                with suppress(_NoLiteral):
                    names[target.id] = _value(node.value, names)
    return names


def _value(node: ast.expr, names: Mapping[str, Any], depth: int = _DEPTH) -> Any:
    """The value of an expression of literals, names of literals, and sums of both."""
    if depth == 0:
        raise _NoLiteral
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(part, names, depth - 1) for part in node.elts]
    if isinstance(node, ast.Dict):
        return _dict(node, names, depth)
    if isinstance(node, ast.Call) and _called(node.func) == "dict" and not node.args:
        return {k.arg: _value(k.value, names, depth - 1) for k in node.keywords if k.arg}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_value(part, names, depth - 1) for part in (node.left, node.right))
        if type(left) is type(right) and isinstance(left, str | list):
            return left + right
    raise _NoLiteral


def _dict(node: ast.Dict, names: Mapping[str, Any], depth: int) -> dict[Any, Any]:
    """The pairs of a dict that are literals: one computed extra must not hide the others."""
    found: dict[Any, Any] = {}
    for key, part in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant):
            with suppress(_NoLiteral):
                found[key.value] = _value(part, names, depth - 1)
    return found
