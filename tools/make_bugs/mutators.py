"""Finds every place in a file where a small bug could be introduced."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from envs.swe.recipe import Edit, splice
from tools.make_bugs import blocks, expressions
from tools.make_bugs.source import Proposals, Source

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS: dict[type[ast.AST], Callable[[Source, Any], Proposals]] = {
    ast.FunctionDef: blocks.defaults,
    ast.AsyncFunctionDef: blocks.defaults,
    ast.ClassDef: blocks.bases,
}
_IN_FUNCTIONS: dict[type[ast.AST], Callable[[Source, Any], Proposals]] = {
    ast.Assign: blocks.unpacking,
    ast.AugAssign: expressions.augmented,
    ast.BinOp: expressions.binary,
    ast.BoolOp: expressions.boolean,
    ast.Break: blocks.loop_exit,
    ast.Call: expressions.call,
    ast.Compare: expressions.compare,
    ast.Constant: expressions.constant,
    ast.Continue: blocks.loop_exit,
    ast.ExceptHandler: expressions.handler,
    ast.If: blocks.condition,
    ast.IfExp: expressions.conditional,
    ast.Return: blocks.returned,
    ast.Slice: expressions.slice_bounds,
    ast.UnaryOp: expressions.unary,
    ast.comprehension: expressions.comprehension,
}
_UNVISITED = frozenset({"annotation", "returns", "type_params", "type_comment"})


@dataclass(frozen=True, slots=True)
class Site:
    """One possible bug."""

    kind: str
    function: str
    """Qualified name of the changed function or class."""
    edits: tuple[Edit, ...]
    line: int
    """First line of the changed statement."""
    last_line: int

    @property
    def lines(self) -> range:
        """Lines of the site; a test can detect the bug only if it runs one of them."""
        return range(self.line, self.last_line + 1)


@dataclass(frozen=True, slots=True)
class _Scope:
    names: tuple[str, ...] = ()
    in_function: bool = False
    statement_line: int | None = None
    """First line of the innermost statement; None for edits of whole statements."""


_Found = tuple[_Scope, str, tuple[Edit, ...]]


def find_sites(data: bytes) -> list[Site]:
    """All sites in functions and classes, in file order, to be checked with `is_a_change`.

    Expressions inside f-strings are skipped: Python 3.11 does not know their positions.

    Raises:
        SyntaxError: the file is not Python for the running interpreter.
        ValueError: the file is not plain UTF-8.
    """
    source = Source(data)
    found: dict[tuple[Edit, ...], Site] = {}
    for scope, kind, edits in _visit(source, source.tree, _Scope()):
        if not scope.names or edits in found:
            continue
        first, last = edits[0].start, max(edits[0].start, edits[-1].end - 1)
        line = source.line_of(first)
        if scope.statement_line is not None:
            line = min(line, scope.statement_line)
        function = ".".join(scope.names)
        facts = {"kind": kind, "function": function}
        described = tuple(
            edit.model_copy(update={**facts, "line": source.line_of(edit.start)}) for edit in edits
        )
        found[edits] = Site(kind, function, described, line, source.line_of(last))
    return sorted(found.values(), key=lambda site: (site.edits[0].start, site.kind))


def _visit(source: Source, node: ast.AST, scope: _Scope) -> Iterator[_Found]:
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.stmt):
        scope = replace(scope, statement_line=node.lineno)
    mutator = _IN_FUNCTIONS.get(type(node)) if scope.in_function else None
    if isinstance(node, (*_FUNCTION, ast.ClassDef)):
        inside = scope.in_function or isinstance(node, _FUNCTION)
        scope = replace(scope, names=(*scope.names, node.name), in_function=inside)
        mutator = _DEFINITIONS[type(node)]
    if mutator:
        yield from ((scope, kind, edits) for kind, edits in mutator(source, node))
    for name, value in ast.iter_fields(node):
        if name not in _UNVISITED:
            yield from _visit_field(source, value, scope)


def _visit_field(source: Source, value: object, scope: _Scope) -> Iterator[_Found]:
    children: list[Any] = value if isinstance(value, list) else [value]
    if scope.in_function and children and isinstance(children[0], ast.stmt):
        whole = replace(scope, statement_line=None)
        yield from ((whole, kind, edits) for kind, edits in blocks.block(source, children))
    for child in children:
        if isinstance(child, ast.AST):
            yield from _visit(source, child, scope)


def is_a_change(data: bytes, edits: tuple[Edit, ...]) -> bool:
    """Whether the edited file compiles to something else under the running interpreter."""
    edited = splice(data, edits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # e.g. about `is` with a literal
        try:
            tree = ast.parse(edited)
            compile(tree, "<edited>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
        return ast.dump(tree) != ast.dump(ast.parse(data))
