"""Rows, times and numbers as text; times from text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from hermes_queue.ledger.fleet.pacing import RunPace
from hermes_queue.terminal.escapes import label
from hermes_queue.terminal.output import echo
from hermes_queue.wire.names import NAME_CHARACTERS

_SECONDS_OF = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows, including the heading, in columns as wide as their widest cell."""
    for line in aligned(rows):
        echo(line)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows, including the heading, as lines. Cells are shortened to what a name may have."""
    rows = [[label(cell, NAME_CHARACTERS) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def age(seconds: float) -> str:
    """A duration for people: `45 s`, `3.5 min`, `2.0 h`, `4.1 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def duration(text: str) -> float:
    """A type of click: the seconds of `30s`, `15m`, `12h` or `7d`."""
    try:
        return float(text[:-1]) * _SECONDS_OF[text[-1:]]
    except (ValueError, KeyError):
        message = f"{text!r} is not a duration; write 30s, 15m, 12h or 7d"
        raise click.BadParameter(message) from None


def slot_time(seconds: float) -> str:
    """Time of slots, in hours however many they are: `0.4 s`, `3.5 min`, `1,204.0 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def figure(value: float) -> str:
    """A number to three digits, and a large one without an exponent: `24,100`."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def ahead_of_trainer(pace: RunPace, now: float) -> str:
    """`16 of 16 groups ahead of the trainer; 40 jobs wait since 3.5 min`."""
    text = f"{pace.ahead} of {pace.max_ahead} groups ahead of the trainer"
    if pace.held_since is None:
        return text
    return f"{text}; {pace.held} jobs wait since {age(now - pace.held_since)}"
