"""Exact arithmetic in the worker: the expression's syntax tree is walked, never run as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from decimal import Context
from fractions import Fraction

from pydantic import Field

from hermes_queue.syntax import parse_expression
from hermes_queue.tools.base import Arguments, Tool, ToolContext, ToolResult

MAX_CHARS = 500
MAX_BITS = 4096
"""Largest numerator and denominator of every intermediate result, in bits."""
DIGITS = 15
"""Significant digits of a result without a short exact form."""


class CalculatorArguments(Arguments):
    """Arguments of `calculator`."""

    expression: str = Field(
        min_length=1,
        max_length=MAX_CHARS,
        description="E.g. (3 + 4.5) * 2 ** 3. Operators: + - * / // % **; functions: abs, "
        "round, min, max, sqrt.",
    )


class _Refused(ValueError):
    """The calculator does not support the expression."""


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _Refused(f"a result has more than {MAX_BITS} bits")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        value = float(base) ** float(exponent)
        if isinstance(value, complex):
            raise _Refused("a fractional power of a negative number is not real")
        return Fraction(value)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if base not in (0, 1, -1) and bits * abs(exponent.numerator) > MAX_BITS:
        raise _Refused(f"a power has more than {MAX_BITS} bits")
    if base in (0, 1, -1) and exponent > 2:
        exponent = 2 + exponent % 2  # same value, for an exponent of any size
    return Fraction(base ** int(exponent))


def _round(value: Fraction, digits: Fraction = Fraction(0)) -> Fraction:
    if digits.denominator != 1 or abs(digits) > 100:
        raise _Refused("round takes a whole number of digits up to 100")
    return Fraction(round(value, int(digits)))


def _sqrt(value: Fraction) -> Fraction:
    roots = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if (roots[0] ** 2, roots[1] ** 2) == (value.numerator, value.denominator):
        return Fraction(*roots)
    return Fraction(math.sqrt(value))


_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type[ast.unaryop], Callable[[Fraction], Fraction]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "abs": abs,
    "round": _round,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sqrt": _sqrt,
}


def evaluate(expression: str) -> Fraction:
    """The exact value; irrational roots and powers as the nearest float. Raises ValueError."""
    try:
        return _walk(parse_expression(expression))
    except SyntaxError as error:
        raise _Refused(f"not an arithmetic expression: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise _Refused("nested too deeply") from error
    except (ZeroDivisionError, OverflowError, TypeError) as error:
        raise _Refused(str(error)) from error


def _walk(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            # repr returns the digits as written, so 0.1 is one tenth.
            return _bounded(Fraction(repr(number)))
        case ast.BinOp(left=left, op=binary, right=right) if type(binary) in _BINARY:
            return _bounded(_BINARY[type(binary)](_walk(left), _walk(right)))
        case ast.UnaryOp(op=unary, operand=operand) if type(unary) in _UNARY:
            return _UNARY[type(unary)](_walk(operand))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_walk(arg) for arg in args)))
        case ast.Tuple():
            raise _Refused("write numbers without thousands separators")
    raise _Refused(f"{ast.unparse(node)[:80]!r} is not supported")


def show(value: Fraction) -> str:
    """The exact decimal form if it is short, else `DIGITS` significant digits."""
    if value.denominator == 1:
        return str(value.numerator)
    exact, rounded = Context(prec=40), Context(prec=DIGITS)
    decimal = exact.divide(*(exact.create_decimal(n) for n in value.as_integer_ratio()))
    if Fraction(decimal) != value:
        decimal = rounded.plus(decimal)
    return f"{decimal:f}" if abs(decimal.adjusted()) <= 40 else f"{decimal:e}"


async def run(context: ToolContext, arguments: CalculatorArguments) -> ToolResult:
    """Return the value, or the error in the expression."""
    try:
        return ToolResult(show(evaluate(arguments.expression)))
    except ValueError as error:
        return ToolResult(f"cannot calculate: {error}", ok=False)


TOOL = Tool(
    name="calculator",
    description="Evaluate one arithmetic expression exactly.",
    arguments=CalculatorArguments,
    run=run,
    runs_in="worker",
)
