"""Arithmetic is exact, bounded, and never code."""

from __future__ import annotations

import pytest

from hermes_queue.tools.calculator import MAX_CHARS, evaluate, show


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("0.1 + 0.2", "0.3"),
        ("12.50 * 30", "375"),
        ("7 // 2", "3"),
        ("-7 % 3", "2"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "0.25"),
        ("9 ** 0.5", "3"),
        ("1 / 3", "0.333333333333333"),
        ("sqrt(16/9)", "1.33333333333333"),
        ("round(2.675, 2)", "2.68"),
        ("max(1, 2.5) - min(3, abs(-4))", "-0.5"),
        ("1 ** 10000000000", "1"),
        ("(-1) ** 10000000001", "-1"),
        ("1_000 * 3", "3000"),
        ("1e3", "1000"),
    ],
)
def test_values_are_exact(expression: str, value: str) -> None:
    assert show(evaluate(expression)) == value


@pytest.mark.parametrize(
    "expression",
    [
        "1 / 0",
        "0 ** -1",
        "9 ** 9 ** 9",
        "2 ** 100000",
        "10 ** 1000 * 10 ** 1000",
        "(1/3) ** 99999",
        "1e999",
        "sqrt(-1)",
        "(-8) ** 0.5",
        "1,234 + 1",
        "x + 1",
        "__import__('os')",
        "(1).real",
        "[1][0]",
        "'a' * 9",
        "True + 1",
        "1 if 1 else 2",
        "2 +",
        "round(1, 10**9)",
        "min()",
        "abs(1, 2)",
        "1 @ 2",
        "~1",
        "lambda: 1",
        "(" * 250,
        "-" * (MAX_CHARS - 1) + "x",
    ],
)
def test_all_else_is_refused_with_a_value_error(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        evaluate(expression)
