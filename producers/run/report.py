"""What a producer's run says at its end, on the terminal and as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.errors import EXIT_FAILED
from hermes_queue.ledger import Pause
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from hermes_queue.wire.ids import group_of
from producers.run.follow import Follower
from producers.run.options import OutputOptions
from producers.run.plan import Plan
from producers.run.progress import Progress, ResultRow, console, print_table
from producers.run.selection import SelectedItems

MAX_CAUSES = 20
"""Different reasons for unexpected scores that are worded."""
MAX_LISTED = 5


def listed(names: Sequence[str]) -> str:
    """The names, or the first of them and how many there are."""
    shown = ", ".join(names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return shown if more <= 0 else f"{shown} and {more} more"


@dataclass(slots=True)
class Summary:
    """What is said at the end; `--json` prints it as it is."""

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
    """Groups that were never delivered."""
    dropped: int = 0
    """Groups that their policy threw away."""
    mean_score: float | None = None
    written: int = 0
    out: str | None = None
    exit_code: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)


class Report:
    """The outcome of one run in the making."""

    def __init__(self, summary: Summary, groups: Mapping[str, int], options: OutputOptions) -> None:
        """Prepare; `groups` are the sizes of the run's groups by id."""
        self.summary = summary
        self.groups = groups
        self.options = options
        self.progress = Progress(quiet=options.quiet)
        self.rows: Sequence[ResultRow] = ()

    @classmethod
    def of(cls, plan: Plan, selection: SelectedItems, options: OutputOptions) -> Report:
        """The report of a run that begins: says what was read."""
        groups = plan.group_sizes(selection)
        summary = Summary(
            run_id=plan.run_id,
            mode="dry-run",
            dataset=selection.dataset,
            items=len(selection.items),
            jobs=sum(groups.values()),
            skipped=dict(selection.skipped),
            notes=selection.notes,
        )
        report = cls(summary, groups, options)
        for note in selection.notes:
            report.progress.say(f"note: {note}")
        for reason, count in selection.skipped.items():
            report.progress.say(f"passed over {count} rows: {reason}")
        report.progress.say(
            f"run {plan.run_id}: {summary.jobs} trajectories of {summary.items} items from "
            f"{selection.dataset}, env {plan.env}, agent {plan.agent.kind}"
        )
        return report

    def unexpected(self) -> int:
        """1 if `--expect-score` does not hold, after naming each cause and where; else 0."""
        wanted = self.options.expect_score
        other = [row for row in self.rows if wanted is not None and row.score != wanted]
        causes: dict[str, list[str]] = {}
        for row in other:
            cause = f"score {row.score}, expected {wanted:g}; {row.note}"
            causes.setdefault(cause, []).append(f"{row.instance_id} sample {row.sample_index}")
        for cause, rows in sorted(causes.items(), key=lambda pair: -len(pair[1]))[:MAX_CAUSES]:
            sys.stderr.write(f"error: {listed(rows)}: {cause}\n")
        if len(causes) > MAX_CAUSES:
            sys.stderr.write(f"error: ... and {len(causes) - MAX_CAUSES} further causes\n")
        return EXIT_FAILED if other else 0

    def take(self, follower: Follower, sink: JsonlSink | None) -> None:
        """Bring what was consumed into the summary."""
        self.rows = follower.rows
        scores = [row.score for row in follower.rows if row.score is not None]
        self.summary.finished = len(scores)
        self.summary.failed = follower.failed
        self.summary.missing = len(follower.pending)
        self.summary.dropped = follower.dropped
        if sink:
            self.summary.written, self.summary.out = sink.written, str(sink.path)
        self.summary.mean_score = sum(scores) / len(scores) if scores else None

    def say_paused(self, pause: Pause, sink: JsonlSink | None) -> None:
        """Why the run stands still, and what lets it go on."""
        sys.stderr.write(
            f"error: run {self.summary.run_id} is paused ({pause.by}): {pause.reason}\n"
        )
        if pause.by == "budget":
            sys.stderr.write("give it more with --budget-cost, --budget-tokens, --budget-wall\n")
        self.say_interrupted(sink)

    def say_interrupted(self, sink: JsonlSink | None) -> None:
        """What is safe, and how to get the rest."""
        done = "stopped watching"
        if sink:
            written = members_by_group(sink)
            count = sum(written[group_id] for group_id in self.groups)
            done = f"{count} of {self.summary.jobs} trajectories are in {sink.path}"
        out = f" --out {self.options.out}" if self.options.out else ""
        follow = " --follow" if self.options.follow else ""
        run_id = self.summary.run_id
        where = "" if self.summary.mode == "embedded" else "; its workers go on"
        sys.stderr.write(
            f"run {run_id} is incomplete: {done}{where}; for the rest repeat the command "
            f"with --run-id {run_id}{out}{follow}\n"
        )

    def results(self, code: int, sink: JsonlSink | None) -> int:
        """The table, the figures and where the records are."""
        summary = self.summary
        if not self.options.quiet and not self.options.json:
            target = console(sys.stdout)
            if self.rows:
                print_table(self.rows, target)
            mean = "-" if summary.mean_score is None else f"{summary.mean_score:.3f}"
            lines = [f"{summary.finished} scored (mean {mean}), {summary.failed} failed"]
            if summary.missing:
                lines.append(
                    f"{summary.missing} groups are no longer in the results stream: an earlier "
                    "consumer had them, their jobs were cancelled, or they became dead letters "
                    "(hermes-queue dead list)"
                )
            if summary.dropped:
                lines.append(
                    f"{summary.dropped} groups were dropped by the policy asked for "
                    "(--drop-zero-variance, --on-incomplete)"
                )
            if sink:
                lines.append(f"results: {sink.path}")
            for line in lines:
                target.print(line, markup=False, highlight=False, soft_wrap=True)
        return self.finish(code)

    def finish(self, code: int) -> int:
        """Print the JSON summary if it is wanted."""
        self.summary.exit_code = code
        if self.options.json:
            self.summary.results = [_plain(row) for row in self.rows]
            fields = {name: getattr(self.summary, name) for name in Summary.__slots__}
            sys.stdout.write(json.dumps(fields) + "\n")
        return code


def members_by_group(sink: JsonlSink) -> Counter[str]:
    """How many trajectories of each group the file holds; a refill counts like any other."""
    return Counter(group_of(trajectory_id) for trajectory_id in sink.trajectory_ids)


def _plain(row: ResultRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ResultRow.__slots__}
