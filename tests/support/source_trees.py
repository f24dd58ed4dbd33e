"""The modules of the product and every node of their syntax trees, parsed once in a process."""

from __future__ import annotations

import ast
import gc
import io
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_queue", "workers", "producers", "envs", "hermes_plugins")


def modules() -> list[Path]:
    """The files, in order, without those of bundled tasks, which are data."""
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [
        path for path in found if ROOT / "hermes_plugins" / "harbor" / "data" not in path.parents
    ]


@cache
def _trees() -> dict[Path, list[ast.AST]]:
    """Every module's nodes, half a million in all, which live to the end.

    The garbage collector neither runs while they are made, which would double the time that takes,
    nor looks at them afterwards.
    """
    gc.collect()
    gc.disable()
    try:
        return {
            path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in modules()
        }
    finally:
        gc.freeze()
        gc.enable()


def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a module of the product; the first one is the module."""
    return _trees()[path]


@cache
def code_lines(text: str) -> int:
    """Lines with code: without blank ones, comments and docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)
