"""New scores beside the old ones."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hermes_plugins.regrade.records import NOTHING_LOST
from hermes_queue.errors import EXIT_FAILED
from hermes_queue.models import ScoredTrajectory
from hermes_queue.results.record_file import read_records
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from hermes_queue.terminal.output import echo
from producers.run.progress import console
from producers.run.report import Report

MAX_SHOWN = 60
"""Changed records that are listed; the file and `--json` have all of them."""
_REASON_CHARACTERS = 200

ScoreChange = Literal["same", "raised", "lowered", "failed"]
"""failed: the regrade has no score, because of something that is not the recorded work's doing."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """One regraded record."""

    env: str
    instance_id: str
    trajectory_id: str
    """Of the older record."""
    change: ScoreChange
    old: float
    new: float | None
    why: str
    """The reason of the new verdict, or the failure."""
    row_changed: bool
    """Whether the dataset row is another one than the older record was measured with."""

    @classmethod
    def of(cls, record: ScoredTrajectory) -> Rescored | None:
        """The comparison in a record; None if it is no regrade."""
        before, new = record.regraded, record.score
        if before is None:
            return None
        reason = record.failure.message if record.failure else record.report.get("reason", "")
        change: ScoreChange = "failed" if new is None else "same"
        if new is not None and new != before.score:
            change = "raised" if new > before.score else "lowered"
        return cls(
            env=record.env,
            instance_id=record.instance_id,
            trajectory_id=before.trajectory_id,
            change=change,
            old=before.score,
            new=new,
            why=" ".join(str(reason).split())[:_REASON_CHARACTERS],
            row_changed=before.item_sha256 not in ("", record.provenance.item_sha256),
        )


@dataclass
class RegradeReport(Report):
    """The report at the end of a regrade.

    It is read from the file, so that it is complete whenever the records were regraded.
    """

    not_regraded: Counter[str] = field(default_factory=Counter)
    expect_same: bool = False
    rescored: tuple[Rescored, ...] = ()

    def results(self, code: int, sink: JsonlSink | None) -> int:
        """Print the comparison; the exit code is 1 if a record has no new score."""
        assert sink is not None  # noqa: S101 - a regrade always writes a file
        self.rescored = tuple(rescored_in(sink.path, self.groups))
        for line in self._lines(sink.path) if not self._is_silent else ():
            console(sys.stdout).print(line, markup=False, highlight=False, soft_wrap=True)
        changes = Counter(each.change for each in self.rescored)
        unable = sum(
            self.not_regraded[reason] for reason in self.not_regraded.keys() - NOTHING_LOST
        )
        if changes["failed"] or unable or len(self.rescored) < len(self.groups):
            code = code or EXIT_FAILED
        if self.expect_same and changes["raised"] + changes["lowered"]:
            echo("error: scores have changed (--expect-same)", err=True)
            code = code or EXIT_FAILED
        return self.finish(code)

    def finish(self, code: int) -> int:
        """Print the JSON summary if `--json` was given."""
        self.summary.exit_code = code
        if self.options.json:
            changes = Counter(each.change for each in self.rescored)
            summary: dict[str, Any] = {
                "run_id": self.summary.run_id,
                "mode": self.summary.mode,
                "out": self.summary.out,
                "records": len(self.groups),
                **{name: changes[name] for name in ("same", "raised", "lowered", "failed")},
                "not_regraded": dict(self.not_regraded),
                "changed": [asdict(each) for each in self.rescored if each.change != "same"],
                "exit_code": code,
            }
            echo(json.dumps(summary))
        return code

    @property
    def _is_silent(self) -> bool:
        return self.options.quiet or self.options.json

    def _lines(self, out: Path) -> Iterator[str]:
        for env in sorted({each.env for each in self.rescored}):
            changes = Counter(each.change for each in self.rescored if each.env == env)
            yield (
                f"{env}: {changes.total()} regraded: {changes['same']} same, {changes['raised']} "
                f"raised, {changes['lowered']} lowered, {changes['failed']} failed"
            )
        changed = [each for each in self.rescored if each.change != "same"]
        for each in changed[:MAX_SHOWN]:
            new = "not measured" if each.new is None else f"{each.new:g}"
            row = ", row changed" if each.row_changed else ""
            head = f"  {each.change:7} {each.trajectory_id} {each.instance_id}"
            yield f"{head}: {each.old:g} -> {new} ({each.why}{row})"
        if len(changed) > MAX_SHOWN:
            yield f"  ... and {len(changed) - MAX_SHOWN} more: see --json"
        if missing := len(self.groups) - len(self.rescored):
            yield f"{missing} records have no new score yet"
        yield f"results: {out}"


def rescored_in(path: Path, groups: Iterable[str]) -> Iterable[Rescored]:
    """The comparisons in a file of records whose groups are among `groups`.

    Of a regrade that failed and was run again by `run retry`, it is the last one.
    """
    wanted = frozenset(groups)
    found: dict[str, Rescored] = {}
    first: dict[str, str] = {}
    """The planned group by the trajectories that were made for it."""
    for member in (each for group in read_records(path) for each in group.members):
        planned = member.group_id
        if planned not in wanted:
            planned = first.get(member.requeued_from or "", "")
        if planned and (comparison := Rescored.of(member)):
            first[member.trajectory_id] = planned
            found[planned] = comparison
    return found.values()
