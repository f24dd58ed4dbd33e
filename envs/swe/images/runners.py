"""The program that runs a row's tests: derived from its columns, and its ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from envs.swe.images.source import Runner

_REPOSITORIES: Mapping[str, Runner] = {"django/django": "django", "sympy/sympy": "sympy"}
"""Repositories of SWE-bench with test programs of their own."""
_PARSERS: Mapping[str, Runner] = {
    "parse_log_django": "django",
    "parse_log_sympy": "sympy",
    "parse_log_unittest": "unittest",
    "parse_log_matplotlib": "pytest",
    "parse_log_seaborn": "pytest",
}
"""SWE-bench's readers of test output; all others that read pytest's say so in their names."""
_VERBOSE = re.compile(r"\w+ \([\w.]+\)")
_NODE_ID = re.compile(r"[^\s:]+\.py::")
_SYMPY = re.compile(r"test_\w+")


def runner_of(row: Mapping[str, Any]) -> Runner:
    """The program whose tests a row of a public dataset has.

    Raises:
        ValueError: it is one that this env cannot run; the message names the column.
    """
    if parser := row.get("log_parser"):
        return runner_of_parser(parser, "log_parser")
    tests = [test for column in ("FAIL_TO_PASS", "PASS_TO_PASS") for test in _listed(row, column)]
    if not tests or any(map(is_node_id, tests)):
        return "pytest"
    known = _REPOSITORIES.get(str(row.get("repo") or "").lower())
    if known is not None:
        return known
    return "unittest" if any(map(_VERBOSE.fullmatch, tests)) else "pytest"


def runner_of_parser(name: object, column: str) -> Runner:
    """The program whose output a parser reads. Raises ValueError: this env cannot run that."""
    found = _PARSERS.get(str(name), "pytest" if "pytest" in str(name) else None)
    if found is None:
        raise ValueError(
            f"{column}: {str(name)[:100]!r} reads the output of a program other than pytest, "
            "unittest, Django and SymPy, and such rows cannot be graded"
        )
    return found


def is_node_id(test: str) -> bool:
    """Whether it is `file.py::...`; a description may have colons, too."""
    return _NODE_ID.match(test) is not None


def is_id(test: str, runner: Runner) -> bool:
    """Whether a test of the program may have this id. Descriptions may be any text."""
    if runner == "pytest":
        return "::" in test
    if is_node_id(test):
        return True
    return bool(_SYMPY.fullmatch(test) if runner == "sympy" else test.strip())


def _listed(row: Mapping[str, Any], column: str) -> Sequence[str]:
    value = row.get(column)
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return list(map(str, value)) if isinstance(value, list | tuple) else []
