"""Rows and ages as text."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hermes_queue.ledger.fleet.pacing import RunPace


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows, including the heading, in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def plain(text: str) -> str:
    """`text` on one line, without characters that a terminal obeys or that turn its direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def age(seconds: float) -> str:
    """A duration for people: `45 s`, `3.5 min`, `2.0 h`, `4.1 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def ahead_of_trainer(pace: RunPace, now: float) -> str:
    """`16 of 16 groups ahead of the trainer; 40 jobs wait since 3.5 min`."""
    text = f"{pace.ahead} of {pace.max_ahead} groups ahead of the trainer"
    if pace.held_since is None:
        return text
    return f"{text}; {pace.held} jobs wait since {age(now - pace.held_since)}"
