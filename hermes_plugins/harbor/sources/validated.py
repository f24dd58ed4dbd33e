"""The file of a validation: which tasks gave the scores that they must give, and in which mode."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from hermes_plugins.harbor.task import GradingMode
from hermes_queue.errors import InputError

VALID, NO_ORACLE = "valid", "no_oracle"


@dataclass(frozen=True, slots=True)
class Validated:
    """What a validation found out about one task."""

    verdict: str
    """`valid`, `no_oracle`, `oracle_fails`, `nop_passes`, `forgeable`, `flaky`, ..."""
    mode: GradingMode | None


@lru_cache(maxsize=8)
def read_validated(path: Path) -> dict[str, Validated]:
    """The tasks of a file, by digest: JSON lines with `digest`, `verdict` and `mode`.

    A task that is there several times counts as the last line says.

    Raises:
        InputError: the file cannot be read, or a line is not such an object.
    """
    found = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--validated {path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            digest, task = _parse(line, f"--validated {path}:{number}")
            found[digest] = task
    if not found:
        raise InputError(f"--validated {path}: lists no task")
    return found


def _parse(line: str, place: str) -> tuple[str, Validated]:
    try:
        row: Any = json.loads(line)
        mode = row.get("mode")
        if mode not in (None, *get_args(GradingMode)):
            raise ValueError(f"mode {mode!r} is unknown")
        return str(row["digest"]), Validated(str(row["verdict"]), mode)
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{place}: is no line of a validation: {error!r}") from error
