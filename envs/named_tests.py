"""Names of tests in a verdict's report: cleaned and bounded.

The names come from the files of a task's tests, which strangers wrote, or from a report that an
agent's code may have touched. They explain a verdict and never decide it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

COUNT_MAX = 500
"""Number of names in a set."""
BYTES_MAX = 24 << 10
"""Bytes of all names of a set together, in UTF-8."""
NAME_BYTES_MAX = 400
"""Bytes of one name. A longer one is not listed: its beginning may be another test's name."""


def clean(name: str) -> str:
    """The name with control characters, bidirectional marks and lone surrogates as escapes."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def compact(names: Iterable[str]) -> dict[str, Any]:
    """`{"names": [...], "more": n}`: the distinct names in order, and how many are not listed."""
    listed: dict[str, None] = {}
    unlisted, left_bytes = 0, BYTES_MAX
    for name in dict.fromkeys(names):
        shown = clean(name[:NAME_BYTES_MAX])
        size = len(shown.encode())
        fits = len(name) <= NAME_BYTES_MAX and size <= min(NAME_BYTES_MAX, left_bytes)
        if not fits or len(listed) == COUNT_MAX or shown in listed:
            unlisted += 1
            continue
        listed[shown] = None
        left_bytes -= size
    return {"names": list(listed), "more": unlisted}
