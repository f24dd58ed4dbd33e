"""Filters of consumer groups, evaluated on the plain fields of a stream entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Conditions that a group must all satisfy. A consumer group keeps its filter for life."""

    run_id: str | None = None
    env: str | None = None
    complete: bool | None = None
    """True: only groups of which every member was measured."""
    min_mean: float | None = None
    """Least mean of the measured scores; a group without scores does not pass."""
    max_mean: float | None = None
    min_std: float | None = None
    """Least population standard deviation; above 0 it excludes groups that give GRPO no signal."""

    def stored(self) -> str:
        """Canonical JSON of the conditions that are set."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(given, sort_keys=True)

    def takes(self, fields: Mapping[str, str]) -> bool:
        """Whether a stream entry with these fields passes."""
        same = (("run_id", self.run_id), ("env", self.env))
        if any(value is not None and fields.get(name) != value for name, value in same):
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
    """The stream id after which to begin reading.

    Args:
        start: "0" = the oldest entry, "$" = only new entries, an entry id = after that entry, or
            a time as an aware datetime or Unix seconds.

    Raises:
        ValueError: `start` is none of these, or a datetime without a time zone.
    """
    if isinstance(start, str):
        milliseconds, _, number = start.partition("-")
        if start == "$" or (milliseconds.isdigit() and (not number or number.isdigit())):
            return start
        raise ValueError(f"start {start!r}: pass '0', '$', an entry id, a datetime or Unix seconds")
    start = unix_s(start)
    # The last id of the millisecond before: XREADGROUP begins after the id that it is given.
    return f"{max(0, int(start * 1000) - 1)}-18446744073709551615" if start > 0 else "0"


def unix_s(time: float | datetime) -> float:
    """`time` as Unix seconds.

    Raises:
        ValueError: `time` is a datetime without a time zone.
    """
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone: pass an aware datetime")
    return time.timestamp()
