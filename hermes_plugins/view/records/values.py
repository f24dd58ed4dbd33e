"""Fields of any type as values that a column holds: bounded text, finite numbers, or None."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

TEXT_CHARACTERS = 256
"""Longest text of a column; names of ours are no longer."""
_LARGEST = 1 << 62
_SURROGATES = re.compile("[\ud800-\udfff]")


def text(value: object, most: int = TEXT_CHARACTERS) -> str | None:
    """`value` as Unicode text of at most `most` characters; None if it is no text, or empty."""
    if not isinstance(value, str) or not value:
        return None
    return storable(value if len(value) <= most else value[: most - 1] + "\u2026")


def storable(value: str) -> str:
    """`value` with a replacement character for each half of a surrogate pair and each NUL."""
    try:
        value.encode()
    except UnicodeEncodeError:
        value = _SURROGATES.sub("\ufffd", value)
    return value.replace("\0", "\ufffd")


def number(value: object) -> float | None:
    """`value` as a finite number; None for anything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        made = float(value)
    except OverflowError:
        return None
    return made if math.isfinite(made) else None


def whole(value: object) -> int | None:
    """`value` as an integer that a column holds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -_LARGEST < value < _LARGEST else None


def mapping(value: object) -> Mapping[str, Any]:
    """`value` if it is a map, else an empty one."""
    return value if isinstance(value, dict) else {}


def listing(value: object) -> Sequence[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()
