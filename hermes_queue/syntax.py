"""Python source read as a syntax tree, by one thread at a time. Nothing is run.

CPython before 3.12.2 counts the depth of every tree it builds in one place. Two threads that
build trees at once mix up their counts, and sound source is refused with "SystemError: AST
constructor recursion depth mismatch" (https://github.com/python/cpython/issues/106905). A worker
reads source in several threads, so everything that does reads it through this module.
"""

from __future__ import annotations

import ast
import threading
from typing import Any

_one_at_a_time = threading.Lock()


def parse_module(source: str) -> ast.Module:
    """The syntax tree of a module.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does.
    """
    with _one_at_a_time:
        return ast.parse(source)


def parse_expression(source: str) -> ast.expr:
    """The syntax tree of one expression; blanks around it do not matter.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does.
    """
    with _one_at_a_time:
        return ast.parse(source.strip(), mode="eval").body


def literal(source: str) -> Any:
    """The value of a literal, as `ast.literal_eval` reads it.

    Raises:
        ValueError: it is an expression, but no literal.
        SyntaxError, TypeError, RecursionError, MemoryError: as `ast.literal_eval` does.
    """
    return ast.literal_eval(parse_expression(source))
