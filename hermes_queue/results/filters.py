"""Which groups a consumer wants, decided on the plain fields of a stream entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """All of what is set must hold. A consumer group keeps its filter for life."""

    run_id: str | None = None
    env: str | None = None
    complete: bool | None = None
    """True: only groups of which every member was measured."""
    min_mean: float | None = None
    """Of the measured scores; a group without any does not pass."""
    max_mean: float | None = None
    min_std: float | None = None
    """Population standard deviation; above 0 leaves out groups that teach GRPO nothing."""

    def stored(self) -> str:
        """Its one text form, without what is not set."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(given, sort_keys=True)

    def takes(self, fields: Mapping[str, str]) -> bool:
        """Whether the entry of these fields passes."""
        same = (("run_id", self.run_id), ("env", self.env))
        if any(wanted is not None and fields.get(name) != wanted for name, wanted in same):
            return False
        if self.complete and fields.get("complete") != "1":
            return False
        least, most = float("-inf"), float("inf")
        bounds = (("mean", self.min_mean, self.max_mean), ("std", self.min_std, None))
        for name, low, high in bounds:
            if low is None and high is None:
                continue
            text = fields.get(name)
            if not text:
                return False
            if (
                not (least if low is None else low)
                <= float(text)
                <= (most if high is None else high)
            ):
                return False
        return True


def stream_id(start: str | float | datetime) -> str:
    """Where in the stream to begin: the entries after the id this returns.

    Args:
        start: "0" = the oldest, "$" = only new ones, the id of an entry (those after it), or
            a time: an aware datetime or Unix seconds.

    Raises:
        ValueError: none of these; a datetime without a time zone names no time.
    """
    if isinstance(start, str):
        milliseconds, _, number = start.partition("-")
        if start == "$" or (milliseconds.isdigit() and (not number or number.isdigit())):
            return start
        raise ValueError(f"start {start!r}: '0', '$', the id of an entry, a datetime or seconds")
    start = unix_s(start)
    # An id of the millisecond before: XREADGROUP begins after the id that it is given.
    return f"{max(0, int(start * 1000) - 1)}-18446744073709551615" if start > 0 else "0"


def unix_s(time: float | datetime) -> float:
    """`time` as Unix seconds.

    Raises:
        ValueError: a datetime without a time zone names no time.
    """
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise ValueError(f"{time}: has no time zone")
    return time.timestamp()
