"""When jobs are due."""

import datetime


def matches(expression: str, when: datetime.datetime) -> bool:
    """Whether a job with this cron expression is due in the minute of `when`."""
    fields = expression.split()
    values = (when.minute, when.hour, when.day, when.month, when.weekday())
    return all(field == "*" or int(field) == value for field, value in zip(fields, values))
