"""The report at the end of a producer's run, on the terminal and as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hermes_queue.core import added
from hermes_queue.errors import EXIT_FAILED
from hermes_queue.ledger import Pause
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from hermes_queue.terminal.output import echo
from hermes_queue.wire.ids import group_of
from producers.run.follow import Follower
from producers.run.options import OutputOptions
from producers.run.plan import Plan
from producers.run.progress import Progress, ResultRow, console, print_table
from producers.run.selection import SelectedItems

MAX_CAUSES = 20
"""Largest number of distinct causes of unexpected scores that are printed."""
MAX_LISTED = 5


def listed(names: Sequence[str]) -> str:
    """The names; of a long list the first ones and the number of others."""
    shown = ", ".join(names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return shown if more <= 0 else f"{shown} and {more} more"


@dataclass(slots=True)
class Summary:
    """Summary at the end of a run; `--json` prints its fields."""

    run_id: str
    mode: str
    dataset: str
    items: int
    jobs: int
    skipped: dict[str, int]
    notes: list[str]
    enqueued: int = 0
    already: int = 0
    finished: int = 0
    failed: int = 0
    missing: int = 0
    """Groups that never arrived."""
    dropped: int = 0
    """Groups that were not published, because of their policy."""
    mean_score: float | None = None
    written: int = 0
    out: str | None = None
    exit_code: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Report:
    """Collects and prints the outcome of one run."""

    summary: Summary
    groups: Mapping[str, int]
    """Ids of the run's groups, and their sizes."""
    options: OutputOptions
    rows: Sequence[ResultRow] = ()

    def __post_init__(self) -> None:
        self.progress = Progress(quiet=self.options.quiet)

    @classmethod
    def of(cls, plan: Plan, selection: SelectedItems, mode: str) -> Report:
        """The report of a run that begins. Prints what was read."""
        groups = plan.group_sizes(selection)
        summary = Summary(
            run_id=plan.run_id,
            mode=mode,
            dataset=selection.dataset,
            items=len(selection.items),
            jobs=sum(groups.values()),
            skipped=dict(selection.skipped),
            notes=selection.notes,
        )
        report = cls(summary, groups, plan.options.output)
        for note in selection.notes:
            report.progress.say(f"note: {note}")
        for line in selection.skip_lines():
            report.progress.say(line)
        report.progress.say(
            f"run {plan.run_id}: {_count(summary.jobs, 'trajectory', 'trajectories')} of "
            f"{_count(summary.items, 'item', 'items')} from "
            f"{selection.dataset}, env {plan.options.run.env}, agent {plan.agent.kind}"
        )
        return report

    def unexpected(self) -> int:
        """1 if `--expect-score` does not hold, after printing each cause and its rows; else 0."""
        expected = self.options.expect_score
        other = [row for row in self.rows if expected is not None and row.score != expected]
        causes: dict[str, list[str]] = {}
        for row in other:
            because = f" ({row.note})" if row.note else ""
            cause = f"score {row.score}, expected {expected:g}{because}"
            causes.setdefault(cause, []).append(f"{row.instance_id} sample {row.sample_index}")
        for cause, rows in sorted(causes.items(), key=lambda pair: -len(pair[1]))[:MAX_CAUSES]:
            echo(f"error: {listed(rows)}: {cause}", err=True)
        if len(causes) > MAX_CAUSES:
            echo(f"error: ... and {len(causes) - MAX_CAUSES} further causes", err=True)
        return EXIT_FAILED if other else 0

    def take(self, follower: Follower, sink: JsonlSink | None) -> None:
        """Copy the follower's results into the summary."""
        self.rows = follower.rows
        scores = [row.score for row in follower.rows if row.score is not None]
        self.summary.finished = len(follower.rows) - follower.failed
        self.summary.failed = follower.failed
        self.summary.missing = len(follower.pending)
        self.summary.dropped = follower.dropped
        if sink:
            self.summary.written, self.summary.out = sink.written, str(sink.path)
        self.summary.mean_score = sum(scores) / len(scores) if scores else None

    def say_paused(self, pause: Pause, sink: JsonlSink | None) -> None:
        """Print why the run is paused, and what resumes it."""
        run_id, say = self.summary.run_id, sys.stderr.write
        say(f"error: run {run_id} is paused ({pause.by}): {pause.reason}\n")
        if pause.by == "budget":
            say("raise the budget with --budget-cost, --budget-tokens or --budget-wall\n")
        self.say_interrupted(sink)

    def say_interrupted(self, sink: JsonlSink | None) -> None:
        """Print what is on disk, and how to get the rest."""
        done = "stopped watching"
        if sink:
            written = members_by_group(sink)
            count = sum(written[group_id] for group_id in self.groups)
            done = f"{count} of {self.summary.jobs} trajectories are in {sink.path}"
        out = f" --out {self.options.out}" if self.options.out else ""
        follow = " --follow" if self.options.follow else ""
        run_id = self.summary.run_id
        where = "" if self.summary.mode == "embedded" else "; its workers continue"
        echo(
            f"run {run_id} is incomplete: {done}{where}; to get the rest, repeat the command "
            f"with --run-id {run_id}{out}{follow}",
            err=True,
        )

    def results(self, code: int, sink: JsonlSink | None) -> int:
        """Print the table, the totals and the place of the records."""
        summary = self.summary
        if not self.options.quiet and not self.options.json:
            target = console(sys.stdout)
            if self.rows:
                print_table(self.rows, target)
            mean = "-" if summary.mean_score is None else f"{summary.mean_score:.3f}"
            finished = f"{summary.finished} scored (mean {mean})"
            if summary.finished and summary.mean_score is None:
                finished = f"{summary.finished} finished (this env gives no scores)"
            lines = [f"{finished}, {summary.failed} failed"]
            if summary.missing:
                lines.append(
                    f"{summary.missing} groups are no longer in the results stream: another "
                    "consumer took them, their jobs were cancelled, or they became dead letters "
                    "(hermes-queue dead list)"
                )
            if summary.dropped:
                lines.append(
                    f"{summary.dropped} groups were dropped by the requested policy "
                    "(--drop-zero-variance, --on-incomplete)"
                )
            if sink:
                lines.append(f"results: {sink.path}")
            else:
                lines.append("results: in Redis (--out PATH also writes a file)")
            path = sink.path if sink else None
            lines += [hint(path) for hint in added("run_hints")]
            for line in lines:
                target.print(line, markup=False, highlight=False, soft_wrap=True)
        return self.finish(code)

    def finish(self, code: int) -> int:
        """Print the JSON summary if `--json` was given."""
        self.summary.exit_code = code
        if self.options.json:
            self.summary.results = [asdict(row) for row in self.rows]
            echo(json.dumps(asdict(self.summary)))
        return code


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def members_by_group(sink: JsonlSink) -> Counter[str]:
    """Number of trajectories of each group in the file; a refill counts like any other."""
    return Counter(group_of(trajectory_id) for trajectory_id in sink.held)
