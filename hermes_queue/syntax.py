"""Python source as a syntax tree, parsed by one thread at a time. Nothing is executed.

CPython before 3.12.2 keeps the recursion depth of all running tree constructions in one counter.
Two threads that build trees at once corrupt it, and valid source is refused with "SystemError:
AST constructor recursion depth mismatch" (https://github.com/python/cpython/issues/106905).
Workers parse source in several threads, so all parsing goes through this module.
"""

from __future__ import annotations

import ast
import threading
from typing import Any

_one_at_a_time = threading.Lock()


def parse_module(source: str) -> ast.Module:
    """The syntax tree of a module. Raises as `ast.parse`: also RecursionError, MemoryError."""
    with _one_at_a_time:
        return ast.parse(source)


def parse_expression(source: str) -> ast.expr:
    """The syntax tree of one expression, without the blanks around it. Raises as `ast.parse`."""
    with _one_at_a_time:
        return ast.parse(source.strip(), mode="eval").body


def literal(source: str) -> Any:
    """The value of a literal. Raises as `ast.literal_eval`: ValueError for other expressions."""
    return ast.literal_eval(parse_expression(source))
