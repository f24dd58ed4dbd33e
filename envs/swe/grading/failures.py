"""The reason why a test run failed, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.swe.paths import file_of

MAX_CHARACTERS = 300


def first_failure(
    tests: Sequence[str], outcomes: Mapping[str, str], messages: Mapping[str, str]
) -> str:
    """The error of the first of `tests` that did not pass, without its id; empty if all passed.

    If a test is missing because its module cannot be imported, this is the module's error. The
    words come from the code under test.
    """
    for test in tests:
        if outcomes.get(test) == "passed":
            continue
        text = messages.get(test) or messages.get(file_of(test)) or ""
        return _line(text) or outcomes.get(test, "missing")
    return ""


def _line(message: str) -> str:
    """The error itself: pytest marks its lines with "E", and the last line is the cause."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marked = [line[2:].strip() for line in lines if line.startswith("E ")]
    return (marked[-1] if marked else lines[0] if lines else "")[:MAX_CHARACTERS]
