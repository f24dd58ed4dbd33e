"""Findings about trajectories as JSON lines: what a judge or a person noticed, and where.

    {"trajectory_id": "run.1f.0", "message": 12, "quote": "git log --all", "label": "history",
     "by": "judge-1"}

Other keys are ignored. The file may be anybody's: lines, texts and numbers are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_queue.errors import InputError
from hermes_queue.wire.parameters import COUNT_MAX

LINE_BYTES_MAX = 64 << 10
FINDINGS_MOST = 1_000_000
"""Lines of one file."""
QUOTE_CHARACTERS = 4000
_SHOWN_CHARACTERS = 60

_Name = Annotated[str, Field(min_length=1, max_length=80)]
_Passage = Annotated[str, Field(max_length=QUOTE_CHARACTERS)]


class TranscriptFinding(BaseModel):
    """One passage of a transcript that somebody has marked."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    trajectory_id: Annotated[str, Field(min_length=1, max_length=300)]
    message: int | None = Field(default=None, ge=0, le=COUNT_MAX)
    """Index in `messages`; None = the trajectory as a whole, or its patch."""
    quote: _Passage = ""
    """Text of the message, word for word."""
    label: _Name
    """What it is, in a word or two."""
    by: _Name
    """Who says so."""
    note: _Passage = ""
    """Why."""


def read_findings(
    path: Path, *, on_error: Callable[[str], None] | None = None
) -> Iterator[TranscriptFinding]:
    """Yield the findings of a file, in order; empty lines are passed over. Blocking.

    Args:
        path: JSON lines in UTF-8.
        on_error: gets a message about each bad line, which is then left out; None = it is an error.

    Raises:
        InputError: the file cannot be read or has too many lines, or a line is no finding and
            there is no `on_error`. It names the file, the line and the field.
    """
    try:
        with path.open("rb") as file:
            for number, line in _lines(file, path):
                try:
                    yield _finding(line)
                except ValueError as error:
                    message = f"{path}:{number}: {error}"
                    if on_error is None:
                        raise InputError(message) from error
                    on_error(message)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line that is not empty; of an endless one, its beginning."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if number > FINDINGS_MOST:
            raise InputError(f"{path}: has more than {FINDINGS_MOST:,} lines: split it")
        if line.strip():
            yield number, line
        while line and not line.endswith(b"\n"):  # the rest of a line that is too long
            line = file.readline(LINE_BYTES_MAX)


def _finding(line: bytes) -> TranscriptFinding:
    """Raises ValueError, with the field."""
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"the line has more than {LINE_BYTES_MAX:,} bytes")
    try:
        value: Any = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("no finding: it is nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    try:
        return TranscriptFinding.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        given = (
            "" if first["type"] == "missing" else f", not {first['input']!r:.{_SHOWN_CHARACTERS}}"
        )
        raise ValueError(f"{field}: {first['msg']}{given}") from None
