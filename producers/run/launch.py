"""One run of a producer, top to bottom, after the flags were parsed."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from envs.base import load_env
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_ISOLATION,
    ConfigurationError,
    HermesQueueError,
)
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.models import AgentSpec
from hermes_queue.settings import PREFIX, ModelSettings, RedisSettings, check_environment
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from producers.base import Producer
from producers.run import sandbox_flags
from producers.run.dataset import open_dataset
from producers.run.follow import Follower, refuse_without_results
from producers.run.plan import Plan, make_plan
from producers.run.progress import Progress
from producers.run.report import Report, Summary, members_by_group
from producers.run.selection import Selection, select

MAX_EMBEDDED_CONCURRENCY = 8
"""By default: a trajectory of an SWE env keeps a processor busy while it is graded."""


FULL_SAY_S = 30.0
"""How often is said that the backlog is full."""


class _Stopped(Exception):
    """Enqueueing was told to end."""


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
        self.summary = Summary(
            run_id=plan.run_id,
            mode="dry-run",
            dataset=selection.dataset,
            items=len(selection.items),
            jobs=sum(self.groups.values()),
            skipped=dict(selection.skipped),
            notes=selection.notes,
        )
        self.report = Report(self.summary, self.groups, arguments)

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
        return self.report.finish(0)

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
            refuse_without_results(ledger)
            out = self.arguments.out
            with JsonlSink(out) if out else nullcontext() as sink:
                return self.watch(ledger, self.groups, sink, lambda: None)
        finally:
            ledger.close()

    def send(self, ledger: Ledger) -> int:
        """Enqueue and leave the rest to the fleet."""
        again = f"the same command with --run-id {self.plan.run_id}"
        self.open(ledger)
        try:
            with self.progress:
                self.enqueue(ledger, self.groups)
        except KeyboardInterrupt:
            sys.stderr.write(f"interrupted while enqueueing; send the rest: {again}\n")
            return self.report.finish(EXIT_INTERRUPTED)
        self.progress.say(f"watch it: {again} --follow")
        return self.report.finish(0)

    def embedded(self) -> int:
        """Do everything on this machine: private Redis, one worker, and a file of results."""
        from hermes_queue.broker.embedded import Embedded

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
                return self.report.results(0, sink)
            concurrency = self.arguments.concurrency or min(
                MAX_EMBEDDED_CONCURRENCY, os.cpu_count() or 1
            )
            self.progress.say("starting a private Redis and a worker")
            embedded = Embedded(
                run_id=self.plan.run_id,
                concurrency=concurrency,
                lane=self.plan.lane,
                log_level=self.arguments.log_level.lower(),
                settings={
                    **sandbox_flags.worker_settings(self.arguments),
                    **own_endpoints(self.plan.agent.base_url),
                    **own_records(self.plan.agent),
                },
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

    def open(self, ledger: Ledger) -> None:
        """Set the run's budgets, and let it go on if it pauses for want of them.

        Here everybody else's pause ends too, since only this command could end it.
        """
        flags = self.arguments
        given = {
            "cost_usd": flags.budget_cost,
            "tokens": flags.budget_tokens,
            "wall_s": flags.budget_wall,
        }
        budgets = {name: limit for name, limit in given.items() if limit is not None}
        if budgets:
            set_budgets(ledger, self.plan.run_id, budgets)
        runs = Runs(ledger)
        pause = runs.paused(self.plan.run_id)
        if pause and (self.summary.mode == "embedded" or (pause.by == "budget" and budgets)):
            runs.resume(self.plan.run_id)

    def enqueue(
        self, ledger: Ledger, groups: Mapping[str, int], stop: threading.Event | None = None
    ) -> None:
        """Send the jobs of `groups`; those that an earlier call sent are left alone.

        Raises:
            _Stopped: `stop` was set by another thread.
        """
        told = 0.0
        total = sum(groups.values()) + len(groups) * self.plan.group_policy.extra_samples
        sent = 0

        def on_batch(count: int) -> None:
            nonlocal sent
            sent += count
            self.progress.show_sent(sent, total)
            check()

        def check() -> None:
            if stop and stop.is_set():
                raise _Stopped

        def on_full(waiting: int) -> None:
            nonlocal told
            check()
            if time.monotonic() - told > FULL_SAY_S:
                told = time.monotonic()
                self.progress.say(
                    f"{waiting} jobs wait for workers; enqueueing goes on when they are fewer "
                    "(HERMES_QUEUE_PRODUCER_BACKLOG_MAX)"
                )

        report = enqueue(
            self.plan.jobs(self.selection, groups.__contains__),
            ledger=ledger,
            config={
                "producer": self.producer.name,
                "dataset": self.selection.dataset,
                **self.plan.config(),
            },
            on_batch=on_batch,
            on_full=on_full,
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
            ends_when_paused=self.summary.mode == "embedded",
        )
        self.open(ledger)
        try:
            with self.progress:
                asyncio.run(self._send_and_follow(ledger, groups, follower))
        except KeyboardInterrupt:
            self.report.say_interrupted(sink)
            self.report.take(follower, sink)
            return self.report.finish(EXIT_INTERRUPTED)
        except HermesQueueError:
            self.report.say_interrupted(sink)
            raise
        self.report.take(follower, sink)
        if follower.cancelled:
            sys.stderr.write(
                f"run {self.plan.run_id} was cancelled: {follower.cancelled} trajectories and "
                f"{len(follower.pending)} groups will not come\n"
            )
        if follower.pause and follower.pending:
            self.report.say_paused(follower.pause, sink)
        code = EXIT_FAILED if follower.failed or follower.pending else 0
        if follower.isolation:
            sys.stderr.write(f"error: {follower.isolation}\n")
            code = EXIT_ISOLATION
        return self.report.results(code or self.report.unexpected(), sink)

    async def _send_and_follow(
        self, ledger: Ledger, groups: Mapping[str, int], follower: Follower
    ) -> None:
        """Follow while enqueueing: where the backlog is full, only results make it shrink."""
        stop = threading.Event()
        sending = asyncio.ensure_future(asyncio.to_thread(self.enqueue, ledger, groups, stop))
        following = asyncio.ensure_future(follower.run(sending))
        following.add_done_callback(lambda _: stop.set())
        try:
            with suppress(_Stopped):  # the run ended before all was sent: it is paused
                await asyncio.gather(sending, following)
        finally:
            stop.set()
            following.cancel()
            await asyncio.gather(sending, following, return_exceptions=True)


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
    if (code := producer.check(selection.items, arguments)) is not None:
        return code
    job = Run(producer, plan, selection, arguments)
    if arguments.dry_run:
        return job.dry()
    from hermes_queue.broker.embedded import should_embed

    if should_embed(RedisSettings()):
        sandbox_flags.check_profile(arguments)
        return job.embedded()
    sandbox_flags.refuse(arguments)
    return job.remote()


def own_endpoints(base_url: str | None) -> dict[str, str]:
    """What has a worker of this user's trust the endpoints that this user names."""
    trusted = ",".join(filter(None, (base_url, ModelSettings().trusted_urls)))
    return {f"{PREFIX}MODEL_TRUSTED_URLS": trusted} if trusted else {}


def own_records(agent: AgentSpec) -> dict[str, str]:
    """What has a worker of this user's open the file of records that this user names."""
    path = agent.params.get("path")
    if agent.kind != "replay" or not isinstance(path, str):
        return {}
    root = Path(path).parent if Path(path).is_absolute() else Path.cwd()
    return {f"{PREFIX}PATHS_REPLAY": str(root)}


def _default_out(run_id: str) -> Path:
    return Path("results") / f"{run_id.replace(':', '_')}.jsonl"
