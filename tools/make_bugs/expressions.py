"""Mutators of operators, constants, names and calls."""

from __future__ import annotations

import ast
from itertools import pairwise

from tools.make_bugs.source import Proposals, Source, delete, replace, swap

_COMPARE: dict[type[ast.cmpop], tuple[str, str, str | None]] = {
    # text, opposite, off by one
    ast.Lt: ("<", ">=", "<="),
    ast.LtE: ("<=", ">", "<"),
    ast.Gt: (">", "<=", ">="),
    ast.GtE: (">=", "<", ">"),
    ast.Eq: ("==", "!=", None),
    ast.NotEq: ("!=", "==", None),
    ast.In: ("in", "not in", None),
    ast.NotIn: ("not in", "in", None),
    ast.Is: ("is", "is not", None),
    ast.IsNot: ("is not", "is", None),
}
_BINARY: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_METHODS = {
    "startswith": "endswith",
    "endswith": "startswith",
    "lower": "upper",
    "upper": "lower",
    "lstrip": "rstrip",
    "rstrip": "lstrip",
    "strip": "lstrip",
    "ljust": "rjust",
    "rjust": "ljust",
    "append": "extend",
    "split": "rsplit",
    "find": "rfind",
    "rfind": "find",
    "partition": "rpartition",
    "setdefault": "get",
    "match": "search",
    "search": "match",
    "union": "intersection",
    "floor": "ceil",
    "ceil": "floor",
}
_EXCEPTIONS = {
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "LookupError",
}
_UNSWAPPABLE = frozenset({"isinstance", "issubclass", "hasattr", "getattr", "super"})


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def compare(source: Source, node: ast.Compare) -> Proposals:
    """Turn `<` into `>=` (cmp_flip) or `<=` (cmp_edge)."""
    if len(node.ops) != 1:
        return
    text, opposite, edge = _COMPARE[type(node.ops[0])]
    if span := source.operator(node.left, node.comparators[0], text):
        yield "cmp_flip", replace(span, opposite)
        if edge:
            yield "cmp_edge", replace(span, edge)


def boolean(source: Source, node: ast.BoolOp) -> Proposals:
    """Turn `and` into `or`, or drop the last operand of a chain of three and more."""
    word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    left, right = node.values[-2:]
    if len(node.values) > 2:
        yield "op_break_chain", delete(source.span(left)[1], source.span(right)[1])
    elif span := source.operator(left, right, word):
        yield "bool_flip", replace(span, other)


def binary(source: Source, node: ast.BinOp) -> Proposals:
    """Turn `+` into `-`, or swap the operands of an operator that does not commute."""
    if type(node.op) not in _BINARY:
        return
    text, other = _BINARY[type(node.op)]
    span = source.operator(node.left, node.right, text)
    textual = _is_text(node.left) or _is_text(node.right)
    if span and not textual:
        yield "op_change", replace(span, other)
    bare = source.text(source.gap(node.left, node.right)).strip() == text.encode()
    ordered = isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod)
    if span and bare and ((ordered and not textual) or isinstance(node.op, ast.Add)):
        yield "op_swap", swap(source.span(node.left), source.span(node.right))


def augmented(source: Source, node: ast.AugAssign) -> Proposals:
    """Turn `+=` into `-=`."""
    if type(node.op) not in _BINARY:
        return
    text, other = _BINARY[type(node.op)]
    if span := source.operator(node.target, node.value, f"{text}="):
        yield "op_change", replace(span, f"{other}=")


def unary(source: Source, node: ast.UnaryOp) -> Proposals:
    """Turn `not x` into `x` (not_drop), and `-x` into `x` (neg_drop)."""
    kind = {ast.Not: "not_drop", ast.USub: "neg_drop"}.get(type(node.op))
    start = source.span(node)[0]
    end = source.span(node.operand)[0]
    while source.data[end - 1 : end] == b"(" and end - 1 > start:
        end -= 1  # brackets are not part of the operand's span
    if kind:
        yield kind, delete(start, end)


def constant(source: Source, node: ast.Constant) -> Proposals:
    """Change small numbers by one, and negate truth values."""
    value, span = node.value, source.span(node)
    if isinstance(value, bool):
        yield "const_flip", replace(span, str(not value))
    elif isinstance(value, int) and value <= 1000 and source.text(span).isdigit():
        yield "const_shift", replace(span, str(value + 1))
        if value > 0:
            yield "const_shift", replace(span, str(value - 1))


def conditional(source: Source, node: ast.IfExp) -> Proposals:
    """Swap the two values of a conditional expression."""
    yield "ctrl_invert_if", swap(source.span(node.body), source.span(node.orelse))


def slice_bounds(source: Source, node: ast.Slice) -> Proposals:
    """Remove a bound of a slice."""
    for bound in (node.lower, node.upper):
        if bound is not None:
            yield "slice_edge", delete(*source.span(bound))


def call(source: Source, node: ast.Call) -> Proposals:
    """Call another function of the same shape, swap arguments, or drop one."""
    function = node.func
    if isinstance(function, ast.Name) and function.id in _FUNCTIONS:
        yield "call_swap", replace(source.span(function), _FUNCTIONS[function.id])
    elif isinstance(function, ast.Attribute) and function.attr in _METHODS:
        end = source.span(function)[1]
        span = end - len(function.attr), end
        yield "call_swap", replace(span, _METHODS[function.attr])
    name = function.id if isinstance(function, ast.Name) else ""
    if len(node.args) >= 2 and name not in _UNSWAPPABLE:
        first, second = node.args[:2]
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield "arg_swap", swap(source.span(first), source.span(second))
    yield from _forwarded_keywords(source, node)


def _forwarded_keywords(source: Source, node: ast.Call) -> Proposals:
    """Turn `f(x, key=key)` into `f(x)`, so that an option is not passed on."""
    before: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    for previous, keyword in pairwise(before):
        if not isinstance(keyword, ast.keyword) or not isinstance(keyword.value, ast.Name):
            continue
        start, end = source.span(previous)[1], source.span(keyword)[1]
        comma = source.text((start, source.span(keyword)[0]))
        if keyword.value.id == keyword.arg and comma.strip() == b",":
            yield "kwarg_drop", delete(start, end)


def handler(source: Source, node: ast.ExceptHandler) -> Proposals:
    """Catch another exception."""
    if isinstance(node.type, ast.Name) and node.type.id in _EXCEPTIONS:
        yield "except_swap", replace(source.span(node.type), _EXCEPTIONS[node.type.id])


def comprehension(source: Source, node: ast.comprehension) -> Proposals:
    """Remove the only condition of a comprehension."""
    if len(node.ifs) == 1:
        start = source.span(node.iter)[1]
        if source.text((start, source.span(node.ifs[0])[0])).split() == [b"if"]:
            yield "remove_cond", delete(start, source.span(node.ifs[0])[1])
