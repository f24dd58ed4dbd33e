"""Findings about trajectories as JSON lines: what a judge or a person noticed, and where.

    {"trajectory_id": "run.1f.0", "message": 12, "quote": "git log --all", "label": "history",
     "by": "judge-1"}

Other keys are ignored. The file may be anybody's: lines, texts and numbers are bounded.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_queue.errors import InputError
from hermes_queue.wire.parameters import COUNT_MAX

LINE_BYTES_MAX = 64 << 10
FINDINGS_MOST = 1_000_000
"""Lines of one file."""
FILE_BYTES_MAX = 64 << 20
"""All of it is held in memory."""
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
        InputError: the file cannot be read, is no regular file or too large, or a line is no
            finding and there is no `on_error`. It names the file, the line and the field.
    """
    try:
        with open(path, "rb", opener=_open) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise InputError(f"{path}: is no regular file")
            if found.st_size > FILE_BYTES_MAX:
                raise InputError(f"{path}: has more than {FILE_BYTES_MAX >> 20} MiB: split it")
            for number, line in _lines(file, found.st_size):
                if number > FINDINGS_MOST:
                    raise InputError(f"{path}: has more than {FINDINGS_MOST:,} lines: split it")
                try:
                    yield _finding(line)
                except ValueError as error:
                    message = f"{path}:{number}: {error}"
                    if on_error is None:
                        raise InputError(message) from error
                    on_error(message)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe that nobody writes to would block


def _lines(file: BinaryIO, left: int) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line that is not empty; of an endless one, its beginning.

    Of a file that grows meanwhile, the first `left` bytes.
    """
    number, goes_on = 0, False
    while left > 0 and (line := file.readline(min(left, LINE_BYTES_MAX + 1))):
        left -= len(line)
        is_new, goes_on = not goes_on, not line.endswith(b"\n")
        number += is_new
        if is_new and (line.strip() or number > FINDINGS_MOST):
            yield number, line


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
