#!/bin/bash
set -eu
cat > /srv/cron/schedule.py <<'PY'
"""When jobs are due."""

import datetime
import re

LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
PART = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")


def _values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no part of a cron expression")
        first, last, step = match.groups()
        begin = low if first is None else int(first)
        end = high if first is None else int(last or (high if step else first))
        if not low <= begin <= end <= high or step == "0" or (step and int(step) == 0):
            raise ValueError(f"{part!r} is out of range")
        found.update(range(begin, end + 1, int(step or 1)))
    return found


def matches(expression: str, when: datetime.datetime) -> bool:
    """Whether a job with this cron expression is due in the minute of `when`."""
    fields = expression.split()
    if len(fields) != 5:
        raise ValueError(f"{expression!r} has not five fields")
    minute, hour, day, month, weekday = (
        _values(field, *limits) for field, limits in zip(fields, LIMITS)
    )
    if when.minute not in minute or when.hour not in hour or when.month not in month:
        return False
    by_day = when.day in day
    by_weekday = bool(weekday & {when.isoweekday(), when.isoweekday() % 7})
    if fields[2] != "*" and fields[4] != "*":
        return by_day or by_weekday
    return by_day and by_weekday
PY
