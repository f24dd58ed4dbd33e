"""Live progress of a run, and the table of its trajectories.

On a terminal, progress is a bar; elsewhere (CI, a log file) it is a plain line after each
change. Progress goes to stderr, results to stdout.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from hermes_queue.ledger import RunStatus
from hermes_queue.models import ScoredTrajectory
from hermes_queue.terminal.output import console as terminal_console

if TYPE_CHECKING:
    import rich.progress
    from rich.console import Console  # noqa: TID251 - the type

PLAIN_WIDTH = 160
"""Columns without a terminal. A table gets them in addition to its instance ids."""
PLAIN_INTERVAL_S = 2.0
MAX_ROWS = 60
"""Longer tables are hard to read; the file holds all rows."""
_NOTE_CHARACTERS = 300


class Progress:
    """Shows counts. A context manager, because a live bar must be taken down."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = console(sys.stderr)
        self._bar = _bar(self._console) if self._console.is_terminal and not quiet else None
        self._started = time.monotonic()
        self._sent_at = self._started
        self._shown, self._shown_at = "", -math.inf

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print one line, unless quiet."""
        if not self._quiet:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, status: RunStatus) -> None:
        """Update the display; cheap enough for several calls per second."""
        if not status.total:  # nothing is enqueued yet
            return
        done, now = status.finished + status.failed, time.monotonic()
        counts = f"{done}/{status.total} finished, {status.running} running, {status.failed} failed"
        text = f"{counts}, {60 * done / max(now - self._started, 1e-3):.1f}/min"
        is_due = now - self._shown_at >= PLAIN_INTERVAL_S or done == status.total
        if self._bar:
            task, *_ = self._bar.task_ids
            self._bar.update(task, total=status.total, completed=done, description=text)
        elif is_due and counts != self._shown:
            self._shown, self._shown_at = counts, now
            self.say(text)

    def show_sent(self, sent: int, total: int) -> None:
        """Show the number of jobs that have been enqueued."""
        if self._bar:
            task, *_ = self._bar.task_ids
            text = f"{sent}/{total} enqueued"
            self._bar.update(task, total=total, completed=sent, description=text)
        elif time.monotonic() - self._sent_at >= PLAIN_INTERVAL_S and sent < total:
            self._sent_at = time.monotonic()
            self.say(f"enqueued {sent}/{total}")


def _bar(target: Console) -> rich.progress.Progress:
    """A bar with our columns and one task."""
    from rich import progress

    bar = progress.Progress(
        progress.SpinnerColumn(),
        progress.BarColumn(bar_width=24),
        progress.TextColumn("{task.description}"),
        progress.TimeElapsedColumn(),
        console=target,
    )
    bar.add_task("starting", total=None)
    return bar


def console(stream: IO[str]) -> Console:
    """A rich console that never wraps unless it is a terminal."""
    return terminal_console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH)


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One line of the result table."""

    instance_id: str
    sample_index: int
    stop_reason: str
    score: float | None
    turns: int
    seconds: float
    """Duration of all stages except waiting in the queue."""
    note: str
    """The tamper case, the failure, or the verifier's reason."""


def result_row(trajectory: ScoredTrajectory) -> ResultRow:
    """The row of a trajectory in the table."""
    asked = sum(message.role == "assistant" for message in trajectory.messages)
    return ResultRow(
        instance_id=trajectory.instance_id,
        sample_index=trajectory.sample_index,
        stop_reason=trajectory.stop_reason,
        score=trajectory.score,
        turns=len(trajectory.turns) or asked,
        seconds=sum(s for name, s in trajectory.stage_seconds.items() if name != "queue"),
        note=_note(trajectory),
    )


def _note(trajectory: ScoredTrajectory) -> str:
    parts = []
    if case := trajectory.agent.params.get("case"):
        parts.append(str(case))
    failure = trajectory.failure
    if failure:
        parts.append(f"{failure.type} in {failure.stage}: {failure.message}")
    elif trajectory.score == 0 and (reason := trajectory.report.get("reason")):
        parts.append(str(reason))
        if first := trajectory.report.get("first_failure"):
            parts.append(str(first))
    return " ".join(": ".join(parts).split())[:_NOTE_CHARACTERS]


def print_table(rows: Sequence[ResultRow], target: Console) -> None:
    """Print the result table. If it is too long, failures come first and the rest is cut."""
    from rich.table import Table
    from rich.text import Text

    shown = sorted(rows, key=lambda r: (r.instance_id, r.sample_index))
    if len(shown) > MAX_ROWS:
        shown = sorted(shown, key=lambda r: r.score is not None)[:MAX_ROWS]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    longest = max((len(row.instance_id) for row in shown), default=0)
    if not target.is_terminal:  # a file has room, and searches need whole ids
        target.width = max(target.width, longest + PLAIN_WIDTH)
    whole = None if target.is_terminal else longest
    table.add_column("instance", overflow="fold", min_width=whole)
    for name in ("sample", "stop reason", "score", "turns", "seconds"):
        table.add_column(name, justify="left" if name == "stop reason" else "right", no_wrap=True)
    with_notes = any(row.note for row in shown)  # otherwise the instance ids get the width
    if with_notes:
        table.add_column("case / failure", overflow="fold")
    for row in shown:
        note = [Text(row.note)] if with_notes else []
        table.add_row(
            Text(row.instance_id),
            str(row.sample_index),
            row.stop_reason,
            "-" if row.score is None else f"{row.score:g}",
            str(row.turns),
            f"{row.seconds:.1f}",
            *note,
        )
    target.print(table)
    target.print()
    if len(rows) > len(shown):
        target.print(f"... and {len(rows) - len(shown)} more", markup=False, highlight=False)
