"""Mutators of statements: dropped, swapped, negated, left too early."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise

from tools.make_bugs.source import Proposals, Source, delete, replace, swap

_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.If, ast.For)


def _docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _rebinds(statement: ast.Assign) -> bool:
    """Whether names stay bound without the assignment: `x = f(x)`, `a.b = 1`, `a[0] = 1`."""
    targets = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    read = {name.id for name in ast.walk(statement.value) if isinstance(name, ast.Name)}
    return bool(targets & read) or any(
        isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets
    )


def _removal(statement: ast.stmt, alone: bool) -> str | None:
    match statement:
        case ast.If(orelse=[]):
            return "remove_cond"
        case ast.AugAssign():
            return "remove_assign"
        case ast.Assign() if _rebinds(statement):
            return "remove_assign"
        case ast.For(orelse=[]) | ast.While(orelse=[]) if not alone:
            return "remove_loop"
        case ast.Expr(value=ast.Call()) if not alone:
            return "remove_call"
        case ast.With() if not alone:
            return "remove_wrapper"
    return None


def block(source: Source, statements: Sequence[ast.stmt]) -> Proposals:
    """Drop a statement, or swap two neighbours."""
    alone = len(statements) == 1
    for statement in statements:
        kind = _removal(statement, alone)
        span = source.line_span(statement, statement)
        if kind and span and alone:
            yield kind, replace(source.span(statement), "pass")
        elif kind and span:
            yield kind, delete(*span)
    for first, second in pairwise(statements):
        a, b = source.line_span(first, first), source.line_span(second, second)
        movable = isinstance(first, _SIMPLE) and isinstance(second, _SIMPLE)
        if a and b and movable and not _docstring(first) and not _docstring(second):
            yield "ctrl_shuffle", swap(a, b)


def condition(source: Source, node: ast.If) -> Proposals:
    """Swap the branches, or negate a plain condition."""
    if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        start = source.span(node.test)[0]
        yield "cond_negate", replace((start, start), "not ")
    if not node.orelse:
        return
    body = source.line_span(node.body[0], node.body[-1])
    other = source.line_span(node.orelse[0], node.orelse[-1])
    # An `elif` is an If in the parent's column: not a block that could move.
    if body and other and node.body[0].col_offset == node.orelse[0].col_offset:
        yield "ctrl_invert_if", swap(body, other)


def returned(source: Source, node: ast.Return) -> Proposals:
    """Do not return the result, or swap its two parts."""
    if isinstance(node.value, ast.Call):
        yield "ret_drop", delete(source.span(node)[0], source.span(node.value)[0])
    elif isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
        first, second = node.value.elts
        yield "ret_swap", swap(source.span(first), source.span(second))


def unpacking(source: Source, node: ast.Assign) -> Proposals:
    """Turn `a, b = f()` into `b, a = f()`."""
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and len(target.elts) == 2:
        first, second = target.elts
        yield "unpack_swap", swap(source.span(first), source.span(second))


def loop_exit(source: Source, node: ast.Break | ast.Continue) -> Proposals:
    """Turn `break` into `continue`, and vice versa."""
    text = "continue" if isinstance(node, ast.Break) else "break"
    yield "loop_exit", replace(source.span(node), text)


def defaults(source: Source, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Proposals:
    """Switch off a flag that is on by default."""
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if isinstance(default, ast.Constant) and isinstance(default.value, bool):
            yield "default_flip", replace(source.span(default), str(not default.value))


def bases(source: Source, node: ast.ClassDef) -> Proposals:
    """Remove the last base of a class."""
    if len(node.bases) > 1 and not node.keywords:
        start, end = source.span(node.bases[-2])[1], source.span(node.bases[-1])[1]
        yield "class_rm_base", delete(start, end)
