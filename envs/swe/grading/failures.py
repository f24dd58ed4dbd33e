"""Why a run of tests was no success, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.swe.paths import file_of

MAX_CHARACTERS = 300


def first_failure(
    wanted: Sequence[str], outcomes: Mapping[str, str], messages: Mapping[str, str]
) -> str:
    """What the first test of `wanted` that did not pass says, without its id; empty: all passed.

    A test that is missing since its module cannot be imported says what the module says. The
    words come from the code under test.
    """
    for test in wanted:
        if outcomes.get(test) == "passed":
            continue
        text = messages.get(test) or messages.get(file_of(test)) or ""
        return _line(text) or outcomes.get(test, "missing")
    return ""


def _line(message: str) -> str:
    """The error itself: pytest marks its lines with "E", the last of a traceback is the cause."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marked = [line[2:].strip() for line in lines if line.startswith("E ")]
    return (marked[-1] if marked else lines[0] if lines else "")[:MAX_CHARACTERS]
