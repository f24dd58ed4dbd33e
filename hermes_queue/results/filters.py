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
        # A group without scores passes no bound: nothing is above or below "not a number".
        mean, std = (float(fields.get(name) or "nan") for name in ("mean", "std"))
        return (
            self.run_id in (None, fields.get("run_id"))
            and self.env in (None, fields.get("env"))
            and (not self.complete or fields.get("complete") == "1")
            and (self.min_mean is None or mean >= self.min_mean)
            and (self.max_mean is None or mean <= self.max_mean)
            and (self.min_std is None or std >= self.min_std)
        )


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
