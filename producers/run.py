"""One run of a producer, top to bottom, after the flags were parsed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.base import load_env
from hermes_queue.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_ISOLATION,
    ConfigurationError,
    HermesQueueError,
)
from hermes_queue.ledger import Ledger
from hermes_queue.queues import enqueue
from hermes_queue.settings import RedisSettings, check_environment
from hermes_queue.sinks.jsonl import JsonlSink
from producers import sandbox_flags
from producers.base import Producer
from producers.dataset import open_dataset
from producers.follow import Follower
from producers.jobs import Plan, make_plan
from producers.progress import Progress, ResultRow, console, print_table
from producers.selection import Selection, select

MAX_EMBEDDED_CONCURRENCY = 8
"""By default: a trajectory of an SWE env keeps a processor busy while it is graded."""


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


class Run:
    """A validated run: what to enqueue, and how to say what became of it."""

    def __init__(
        self, producer: Producer, plan: Plan, selection: Selection, arguments: argparse.Namespace
    ) -> None:
        self.producer = producer
        self.plan = plan
        self.selection = selection
        self.arguments = arguments
        self.groups = plan.group_sizes(selection)
        self.progress = Progress(quiet=arguments.quiet)
        self.rows: Sequence[ResultRow] = ()
        self.summary = Summary(
            run_id=plan.run_id,
            mode="dry-run",
            dataset=selection.dataset,
            items=len(selection.items),
            jobs=sum(self.groups.values()),
            skipped=dict(selection.skipped),
            notes=selection.notes,
        )

    def dry(self) -> int:
        """Say what would be enqueued."""
        sizes = [item.size_bytes for item in self.selection.items]
        self.announce()
        for item in self.selection.items[:20]:
            self.progress.say(
                f"  {item.key}  {self.plan.size_of(item)} sample(s), {item.size_bytes} bytes"
            )
        if len(sizes) > 20:
            self.progress.say(f"  ... and {len(sizes) - 20} more")
        self.progress.say(f"dry run: nothing was enqueued; largest row {max(sizes)} bytes")
        return self.finish(0)

    def remote(self) -> int:
        """Enqueue for a fleet of workers; watch when results are wanted."""
        self.summary.mode = "remote"
        follows = self.arguments.follow or self.arguments.out is not None
        if self.arguments.expect_score is not None and not follows:
            raise ConfigurationError("--expect-score needs results: add --follow or --out PATH")
        self.announce()
        ledger = Ledger.connect()
        try:
            if not follows:
                return self.send(ledger)
            out = self.arguments.out
            with JsonlSink(out) if out else nullcontext() as sink:
                return self.watch(ledger, self.groups, sink, lambda: None)
        finally:
            ledger.close()

    def send(self, ledger: Ledger) -> int:
        """Enqueue and leave the rest to the fleet."""
        again = f"the same command with --run-id {self.plan.run_id}"
        try:
            with self.progress:
                self.enqueue(ledger, self.groups)
        except KeyboardInterrupt:
            sys.stderr.write(f"interrupted while enqueueing; send the rest: {again}\n")
            return self.finish(EXIT_INTERRUPTED)
        self.progress.say(f"watch it: {again} --follow")
        return self.finish(0)

    def embedded(self) -> int:
        """Do everything on this machine: private Redis, one worker, and a file of results."""
        from hermes_queue.embedded import Embedded

        self.summary.mode = "embedded"
        self.announce()
        with JsonlSink(self.arguments.out or _default_out(self.plan.run_id)) as sink:
            self.summary.out = str(sink.path)
            if sink.repaired_bytes:
                self.progress.say(f"{sink.path}: removed a torn last line; it is made again")
            written = members_by_group(sink)
            early = self.plan.group_policy.stop_after_equal or max(self.groups.values())
            groups = {g: size for g, size in self.groups.items() if written[g] < min(size, early)}
            if len(groups) < len(self.groups):
                self.progress.say(
                    f"{len(self.groups) - len(groups)} of {len(self.groups)} groups are in "
                    f"{sink.path} already"
                )
            if not groups:
                return self.results(0, sink)
            concurrency = self.arguments.concurrency or min(
                MAX_EMBEDDED_CONCURRENCY, os.cpu_count() or 1
            )
            self.progress.say("starting a private Redis and a worker")
            embedded = Embedded(
                run_id=self.plan.run_id,
                concurrency=concurrency,
                lane=self.plan.lane,
                log_level=self.arguments.log_level.lower(),
                settings=sandbox_flags.worker_settings(self.arguments),
            )
            with embedded:
                self.progress.say(f"worker log: {embedded.log_path}")
                ledger = Ledger.connect(url=embedded.redis_url)
                try:
                    code = self.watch(ledger, groups, sink, embedded.check)
                finally:
                    ledger.close()
            if code == 0:  # otherwise the log is of use, and the state to a repetition
                embedded.discard()
            return code

    def announce(self) -> None:
        """Say what was read."""
        for note in self.selection.notes:
            self.progress.say(f"note: {note}")
        for reason, count in self.selection.skipped.items():
            self.progress.say(f"passed over {count} rows: {reason}")
        self.progress.say(
            f"run {self.plan.run_id}: {self.summary.jobs} trajectories of "
            f"{self.summary.items} items from {self.selection.dataset}, env {self.plan.env}, "
            f"agent {self.plan.agent.kind}"
        )

    def enqueue(self, ledger: Ledger, groups: Mapping[str, int]) -> None:
        """Send the jobs of `groups`; those that an earlier call sent are left alone."""
        total = sum(groups.values()) + len(groups) * self.plan.group_policy.extra_samples
        sent = 0

        def on_batch(count: int) -> None:
            nonlocal sent
            sent += count
            self.progress.show_sent(sent, total)

        report = enqueue(
            self.plan.jobs(self.selection, groups.__contains__),
            ledger=ledger,
            config={
                "producer": self.producer.name,
                "dataset": self.selection.dataset,
                **self.plan.config(),
            },
            on_batch=on_batch,
        )
        self.summary.enqueued, self.summary.already = report.enqueued, report.already
        known = f", {report.already} were there already" if report.already else ""
        self.progress.say(f"enqueued {report.enqueued} jobs on lane {self.plan.lane}{known}")

    def watch(
        self,
        ledger: Ledger,
        groups: Mapping[str, int],
        sink: JsonlSink | None,
        check: Callable[[], None],
    ) -> int:
        """Enqueue and follow; whatever happens, say what is on disk and how to go on."""
        follower = Follower(
            ledger,
            self.plan.run_id,
            groups,
            lane=self.plan.lane,
            sink=sink,
            progress=self.progress,
            check=check,
        )
        try:
            with self.progress:
                self.enqueue(ledger, groups)
                asyncio.run(follower.run())
        except KeyboardInterrupt:
            self.say_interrupted(sink)
            self.take(follower, sink)
            return self.finish(EXIT_INTERRUPTED)
        except HermesQueueError:
            self.say_interrupted(sink)
            raise
        self.take(follower, sink)
        if follower.cancelled:
            sys.stderr.write(
                f"run {self.plan.run_id} was cancelled: {follower.cancelled} trajectories and "
                f"{len(follower.pending)} groups will not come\n"
            )
        code = EXIT_FAILED if follower.failed or follower.pending else 0
        if follower.isolation:
            sys.stderr.write(f"error: {follower.isolation}\n")
            code = EXIT_ISOLATION
        return self.results(code or self.unexpected(), sink)

    def unexpected(self) -> int:
        """1 if `--expect-score` does not hold, after naming where; else 0."""
        wanted = self.arguments.expect_score
        other = [row for row in self.rows if wanted is not None and row.score != wanted]
        for row in other[:20]:
            sys.stderr.write(
                f"error: {row.instance_id} sample {row.sample_index}: score {row.score}, "
                f"expected {wanted:g}; {row.note}\n"
            )
        if len(other) > 20:
            sys.stderr.write(f"error: ... and {len(other) - 20} more\n")
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

    def say_interrupted(self, sink: JsonlSink | None) -> None:
        """What is safe, and how to get the rest."""
        done = "stopped watching"
        if sink:
            written = members_by_group(sink)
            count = sum(written[group_id] for group_id in self.groups)
            done = f"{count} of {self.summary.jobs} trajectories are in {sink.path}"
        out = f" --out {self.arguments.out}" if self.arguments.out else ""
        follow = " --follow" if self.arguments.follow else ""
        where = "" if self.summary.mode == "embedded" else "; its workers go on"
        sys.stderr.write(
            f"run {self.plan.run_id} is incomplete: {done}{where}; for the rest repeat the command "
            f"with --run-id {self.plan.run_id}{out}{follow}\n"
        )

    def results(self, code: int, sink: JsonlSink | None) -> int:
        """The table, the figures and where the records are."""
        summary = self.summary
        if not self.arguments.quiet and not self.arguments.json:
            target = console(sys.stdout)
            if self.rows:
                print_table(self.rows, target)
            mean = "-" if summary.mean_score is None else f"{summary.mean_score:.3f}"
            lines = [f"{summary.finished} scored (mean {mean}), {summary.failed} failed"]
            if summary.missing:
                lines.append(
                    f"{summary.missing} groups are no longer in the results stream: an earlier "
                    "consumer had them, or their jobs were cancelled"
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
        if self.arguments.json:
            self.summary.results = [_plain(row) for row in self.rows]
            fields = {name: getattr(self.summary, name) for name in Summary.__slots__}
            sys.stdout.write(json.dumps(fields) + "\n")
        return code


def run(producer: Producer, arguments: argparse.Namespace) -> int:
    """Validate everything, then enqueue, and follow if results are wanted here.

    Raises:
        HermesQueueError: see its `exit_code`; before the first enqueue nothing was sent.
        IsolationUnavailable: the embedded worker cannot isolate slots.
    """
    check_environment()
    sandbox_flags.worker_settings(arguments)
    env = load_env(arguments.env)
    plan = make_plan(producer, env, arguments)
    dataset = open_dataset(
        arguments.dataset or producer.dataset, bundled=producer.bundled, split=arguments.split
    )
    selection = select(producer, env, dataset, arguments)
    plan.check(selection)
    job = Run(producer, plan, selection, arguments)
    if arguments.dry_run:
        return job.dry()
    from hermes_queue.embedded import should_embed

    if should_embed(RedisSettings()):
        return job.embedded()
    sandbox_flags.refuse(arguments)
    return job.remote()


def members_by_group(sink: JsonlSink) -> Counter[str]:
    """How many trajectories of each group the file holds; a refill counts like any other."""
    return Counter(trajectory_id.rpartition(".")[0] for trajectory_id in sink.trajectory_ids)


def _default_out(run_id: str) -> Path:
    return Path("results") / f"{run_id.replace(':', '_')}.jsonl"


def _plain(row: ResultRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ResultRow.__slots__}
