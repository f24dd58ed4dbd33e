"""A Python file as bytes and syntax tree, with positions in bytes.

Edits are byte spans, so that the rest of a file stays unchanged and a recipe contains no
third-party code: a span is replaced by an operator, a name or nothing, or two spans are swapped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import accumulate

from envs.swe.recipe import Edit

Span = tuple[int, int]
"""Byte offsets; the end is exclusive."""

Proposals = Iterator[tuple[str, tuple[Edit, ...]]]
"""(kind of bug, edits in ascending order); not every proposal is valid Python."""


def replace(span: Span, text: str) -> tuple[Edit, ...]:
    """Replace the span by `text`."""
    return (Edit(start=span[0], end=span[1], text=text),)


def delete(start: int, end: int) -> tuple[Edit, ...]:
    """Drop some bytes."""
    return (Edit(start=start, end=end),)


def swap(a: Span, b: Span) -> tuple[Edit, ...]:
    """Swap two spans; `a` comes first."""
    return Edit(start=a[0], end=a[1], copy_from=b), Edit(start=b[0], end=b[1], copy_from=a)


class Source:
    """One parsed file.

    Raises:
        SyntaxError: it is not Python for the running interpreter.
        ValueError: it is not UTF-8 without a byte order mark, so offsets would be wrong.
    """

    def __init__(self, data: bytes) -> None:
        if data.startswith(b"\xef\xbb\xbf"):
            raise ValueError("byte order mark")
        data.decode()  # UnicodeDecodeError is a ValueError
        self.data = data
        self.tree = ast.parse(data)
        self._starts = [0, *accumulate(map(len, data.splitlines(keepends=True)))]

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> Span:
        """Span of the node, without decorators and surrounding brackets."""
        end_line, end_column = node.end_lineno, node.end_col_offset
        if end_line is None or end_column is None:  # only in trees that no parser made
            raise ValueError("node without an end")
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[end_line - 1] + end_column,
        )

    def text(self, span: Span) -> bytes:
        """The bytes of a span."""
        return self.data[span[0] : span[1]]

    def gap(self, left: ast.expr, right: ast.expr) -> Span:
        """Span between two nodes."""
        return self.span(left)[1], self.span(right)[0]

    def line_of(self, offset: int) -> int:
        """The line of a byte, counted from 1."""
        return self.data.count(b"\n", 0, offset) + 1

    def line_span(self, first: ast.stmt, last: ast.stmt) -> Span | None:
        """The whole lines of some statements, including the line break.

        None if they share a line with anything but a comment, or if the last line has no line
        break.
        """
        decorators = getattr(first, "decorator_list", [])
        top = min([first.lineno, *(d.lineno for d in decorators)])
        start, end = self._starts[top - 1], self._starts[last.end_lineno or last.lineno]
        head = self.data[start : self._starts[first.lineno - 1] + first.col_offset]
        tail = self.data[self.span(last)[1] : end].strip()
        if (not decorators and head.strip()) or (tail and not tail.startswith(b"#")):
            return None
        return (start, end) if self.data[end - 1 : end] == b"\n" else None

    def operator(self, left: ast.expr, right: ast.expr, words: str) -> Span | None:
        """Span of the operator between two operands; None if it is ambiguous."""
        start, end = self.gap(left, right)
        gap = self.data[start:end]
        core = gap.lstrip(b" )").rstrip(b" (")
        if b"\n" in gap or core.split() != words.encode().split():
            return None
        start += gap.index(core)
        return start, start + len(core)
