"""What test modules of an image define, read from their source. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from hermes_queue.syntax import parse_module

MAX_SOURCE_BYTES = 4 << 20

NamedStatement = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parsed(sources: Mapping[str, bytes]) -> Iterator[tuple[str, ast.Module]]:
    """Path and syntax tree of each module; those too large or not parseable are left out."""
    for path, source in sources.items():
        if len(source) <= MAX_SOURCE_BYTES:
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                yield path, parse_module(source.decode())


def definitions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, NamedStatement]]:
    """Functions, methods and classes by their names as in node ids: `Class::method`.

    Definitions inside functions are none of them; those under `if`, `try` and `with` are.
    """
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from definitions(node.body, f"{prefix}{node.name}::")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from definitions(node.body, prefix)
            yield from definitions(getattr(node, "orelse", []), prefix)
