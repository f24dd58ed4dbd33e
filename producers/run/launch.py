"""One run of a producer, top to bottom, after its options have been parsed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import ClassVar

from envs.base import load_env
from hermes_queue.agent.endpoint.choice import NO_KEY, OwnEndpoints
from hermes_queue.agent.registry import check_in_runs
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_ISOLATION,
    ConfigurationError,
    HermesQueueError,
)
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.accounts.drift import set_max_drift
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.fleet.pacing import set_pace
from hermes_queue.ledger.ledger import RUN_TTL_S
from hermes_queue.ledger.run_lock import keep_lock
from hermes_queue.models import AgentSpec
from hermes_queue.settings import PREFIX, ModelSettings, RedisSettings
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from hermes_queue.terminal.output import echo
from hermes_queue.wire.names import make_ids
from producers.known.consult import consulted, poison_note
from producers.lock.contents import LockFile, check_lock, lock_of
from producers.run.follow import Follower, no_worker, refuse_untrusted, refuse_without_results
from producers.run.options import ProducerOptions
from producers.run.plan import Plan, make_plan
from producers.run.report import Report, members_by_group
from producers.run.selection import SelectedItems, select
from producers.source import Producer

FULL_SAY_S = 30.0
"""Seconds between two messages that the backlog is full."""
MAX_EMBEDDED_CONCURRENCY = 8
"""Default limit: a trajectory of an SWE env keeps a processor busy while it is graded."""


class Stopped(Exception):
    """Enqueueing was stopped."""


def run(producer: Producer, options: ProducerOptions) -> int:
    """Validate everything, enqueue, and follow the run if its results are requested.

    Raises:
        HermesQueueError: see its `exit_code`; if validation failed, nothing was sent.
        IsolationUnavailable: the embedded worker cannot isolate slots.
    """
    options.sandbox.worker_settings()
    check_in_runs(options.agent.kind)
    env = load_env(options.run.env)
    plan = make_plan(producer, env, options)
    rows = options.rows
    dataset = producer.dataset_of(rows.dataset, rows.split)
    with consulted(plan) as known:
        sift = known.sift if known and options.known.chooses else None
        selection = select(producer, env, dataset, options, plan.misfit_for(env), sift=sift)
        if known:
            known.order(selection)
            selection.notes += known.notes(selection)
    plan.check(selection)
    code: int | None = producer.call("check", selection.items, options, place=dataset.name)
    if code is not None:
        return code
    from hermes_queue.broker.embedded import should_embed

    lock = lock_of(producer, env, plan, selection)
    for each in check_lock(options.locking, lock):
        echo(f"differs from the lock: {each}", err=True)
    if options.output.dry_run:
        return Launch(producer, plan, selection, "dry-run").dry()
    if should_embed(RedisSettings()):
        if options.staleness.max_ahead:
            raise ConfigurationError(
                "--max-ahead: no trainer reads a run that is made on this machine alone, which "
                "would wait for it for ever; set HERMES_QUEUE_REDIS_URL"
            )
        options.sandbox.check_profile(options.run.profile)
        refuse_without_endpoint(plan.agent)
        return Launch(producer, plan, selection, "embedded", lock).embedded()
    options.sandbox.refuse()
    if options.output.expect_score is not None and not options.output.follows:
        raise ConfigurationError("--expect-score needs results: add --follow or --out PATH")
    return Launch(producer, plan, selection, "remote", lock).remote()


class Launch:
    """The jobs of one run on their way, and the report that counts them."""

    report_type: ClassVar[type[Report]] = Report

    def __init__(
        self,
        producer: Producer,
        plan: Plan,
        selection: SelectedItems,
        mode: str,
        lock: LockFile | None = None,
    ) -> None:
        self.producer = producer
        self.plan = plan
        self.selection = selection
        self.report = self.report_type.of(plan, selection, mode)
        self.options = plan.options
        self._lock = lock

    def dry(self) -> int:
        """Report what would be enqueued."""
        say, items = self.report.progress.say, self.selection.items
        for item in items[:20]:
            say(f"  {item.key}  {self.plan.size_of(item)} sample(s), {item.size_bytes} bytes")
        if len(items) > 20:
            say(f"  ... and {len(items) - 20} more")
        largest = max(item.size_bytes for item in items)
        say(f"dry run: nothing was enqueued; largest row {largest} bytes")
        return self.report.finish(0)

    def remote(self) -> int:
        """Enqueue for a fleet of workers; watch if results are requested."""
        output = self.options.output
        with closing(Ledger.connect()) as ledger:
            if warning := poison_note(ledger, self.selection):
                self.report.progress.say(f"warning: {warning}")
            lane, workers = self.options.run.lane, ledger.workers()
            refuse_untrusted(workers, lane, self.plan.agent.base_url)
            if not output.follows:
                return self._send(ledger, no_worker(workers, lane))
            refuse_without_results(ledger)
            with JsonlSink(output.out) if output.out else nullcontext() as sink:
                return self._watch(ledger, self.report.groups, sink)

    def _send(self, ledger: Ledger, missing: str) -> int:
        """Enqueue, and leave the results to other consumers; `missing` as in `no_worker`."""
        again = f"the same command with --run-id {self.plan.run_id}"
        self._open(ledger)
        try:
            with self.report.progress:
                self._enqueue(ledger, self.report.groups, threading.Event())
        except KeyboardInterrupt:
            echo(f"interrupted while enqueueing; send the rest with {again}", err=True)
            return self.report.finish(EXIT_INTERRUPTED)
        if missing:
            self.report.progress.say(f"warning: {missing}")
        self.report.progress.say(f"watch the run with {again} --follow")
        return self.report.finish(0)

    @property
    def default_out(self) -> Path:
        """The file of results where none was named."""
        return Path("results") / f"{self.plan.run_id.replace(':', '_')}.jsonl"

    def embedded(self) -> int:
        """Do everything on this machine: private Redis, one worker, and a file of results."""
        from hermes_queue.broker.embedded import Embedded

        options, report, run_id = self.options, self.report, self.plan.run_id
        with JsonlSink(options.output.out or self.default_out) as sink:
            groups = self._missing_groups(sink)
            if not groups:
                return report.results(0, sink)
            self._provide(groups)
            report.progress.say("starting a private Redis and a worker")
            slots = options.run.concurrency or min(MAX_EMBEDDED_CONCURRENCY, os.cpu_count() or 1)
            with Embedded(
                run_id=run_id,
                concurrency=slots,
                lane=options.run.lane,
                log_level=options.output.log_level.lower(),
                settings={
                    **options.sandbox.worker_settings(),
                    **own_endpoints(self.plan.agent.base_url),
                    **own_records(self.plan.agent),
                },
            ) as worker:
                report.progress.say(f"worker log: {worker.log_path}")
                with closing(Ledger.connect(url=worker.redis_url)) as ledger:
                    code = self._watch(ledger, groups, sink, worker.check)
            if code == 0:  # otherwise keep the log for the user and the state for a rerun
                worker.discard()
            return code

    def _provide(self, groups: Mapping[str, int]) -> None:
        """Have the producer bring what the rows of `groups` need on this machine."""
        producer, run_id = self.producer, self.plan.run_id
        items = [i for i in self.selection.items if make_ids(run_id, i.key, 0)[0] in groups]
        say = self.report.progress.say
        producer.call("provide", items, self.options, say, place=self.selection.dataset)

    def _missing_groups(self, sink: JsonlSink) -> dict[str, int]:
        """The groups that the file does not hold yet, with their sizes."""
        report = self.report
        report.summary.out = str(sink.path)
        if sink.repaired_bytes:
            report.progress.say(
                f"{sink.path}: removed a truncated last line; its trajectory is made again"
            )
        written = members_by_group(sink)
        early = self.plan.group_policy.stop_after_equal or max(report.groups.values())
        groups = {g: size for g, size in report.groups.items() if written[g] < min(size, early)}
        if done := len(report.groups) - len(groups):
            report.progress.say(f"{done} of {len(report.groups)} groups are already in {sink.path}")
        return groups

    def _open(self, ledger: Ledger) -> None:
        """Set the run's budgets, drift and pace; resume it if one of those that are set paused it.

        An embedded run is resumed from any pause, because only this command can resume it.
        """
        runs, run_id = Runs(ledger), self.plan.run_id
        if self._lock and not keep_lock(ledger, run_id, self._lock.text(), run_ttl_s=RUN_TTL_S):
            self.report.progress.say("the run's lock is too long to be kept; see --lock FILE")
        if budgets := self.options.budgets.given():
            set_budgets(ledger, run_id, budgets)
        if (max_drift := self.options.budgets.max_drift) is not None:
            set_max_drift(ledger, run_id, max_drift)
        if max_ahead := self.options.staleness.max_ahead:
            set_pace(ledger, run_id, max_ahead)
        pause = runs.paused(run_id)
        is_embedded = self.report.summary.mode == "embedded"
        raised = {"budget": bool(budgets), "drift": max_drift is not None}
        if pause and (is_embedded or raised.get(pause.by)):
            runs.resume(run_id)

    def _enqueue(self, ledger: Ledger, groups: Mapping[str, int], stop: threading.Event) -> None:
        """Send the jobs of `groups`; jobs that an earlier call has sent are not sent again.

        Raises:
            Stopped: `stop` was set by another thread.
        """
        progress, summary = self.report.progress, self.report.summary
        total = sum(groups.values()) + len(groups) * self.plan.group_policy.extra_samples
        sent, reported_at = 0, 0.0

        def on_batch(count: int) -> None:
            nonlocal sent
            sent += count
            progress.show_sent(sent, total)
            if stop.is_set():
                raise Stopped

        def on_full(waiting: int) -> None:
            nonlocal reported_at
            if stop.is_set():
                raise Stopped
            if time.monotonic() - reported_at > FULL_SAY_S:
                reported_at = time.monotonic()
                progress.say(
                    f"{waiting} jobs wait for workers; enqueueing continues when they are fewer "
                    "(HERMES_QUEUE_PRODUCER_BACKLOG_MAX)"
                )

        done = enqueue(
            self.plan.jobs(self.selection, groups.__contains__),
            ledger=ledger,
            config=self.plan.config(self.selection.dataset),
            items=self.plan.items(self.selection.items),
            on_batch=on_batch,
            on_full=on_full,
            part=self.options.part.part,
        )
        summary.enqueued, summary.already = done.enqueued, done.already
        known = f", {done.already} were already enqueued" if done.already else ""
        jobs = "job" if done.enqueued == 1 else "jobs"
        progress.say(f"enqueued {done.enqueued} {jobs} on lane {self.options.run.lane}{known}")

    def _watch(
        self,
        ledger: Ledger,
        groups: Mapping[str, int],
        sink: JsonlSink | None,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Enqueue and follow; on every ending, report what is on disk and how to continue."""
        report, run_id = self.report, self.plan.run_id
        follower = Follower(
            ledger,
            run_id,
            groups,
            lane=self.options.run.lane,
            sink=sink,
            progress=report.progress,
            check=check,
            ends_when_paused=report.summary.mode == "embedded",
        )
        self._open(ledger)
        try:
            with report.progress:
                asyncio.run(self._send_and_follow(ledger, groups, follower))
        except KeyboardInterrupt:
            report.say_interrupted(sink)
            report.take(follower, sink)
            return report.finish(EXIT_INTERRUPTED)
        except HermesQueueError:
            report.say_interrupted(sink)
            raise
        report.take(follower, sink)
        if follower.cancelled:
            echo(
                f"run {run_id} was cancelled: {follower.cancelled} trajectories and "
                f"{len(follower.pending)} groups will not finish",
                err=True,
            )
        if follower.pause and follower.pending:
            report.say_paused(follower.pause, sink)
        code = EXIT_FAILED if follower.failed or follower.pending else 0
        if follower.isolation:
            echo(f"error: {follower.isolation}", err=True)
            code = EXIT_ISOLATION
        return report.results(code or report.unexpected(), sink)

    async def _send_and_follow(
        self, ledger: Ledger, groups: Mapping[str, int], follower: Follower
    ) -> None:
        """Follow while enqueueing: a full backlog shrinks only by consumed results."""
        stop = threading.Event()
        sender = asyncio.ensure_future(asyncio.to_thread(self._enqueue, ledger, groups, stop))
        following = asyncio.ensure_future(follower.run(sender))
        following.add_done_callback(lambda _: stop.set())
        try:
            with suppress(Stopped):  # the run is paused and ended before all jobs were sent
                await asyncio.gather(sender, following)
        finally:
            stop.set()
            following.cancel()
            await asyncio.gather(sender, following, return_exceptions=True)


def refuse_without_endpoint(agent: AgentSpec) -> None:
    """Raise ConfigurationError if an agent of this machine needs a model and knows no endpoint."""
    own = OwnEndpoints.of(ModelSettings())
    if agent.kind in ("openai", "command") and not agent.base_url and not own.urls:
        if own.key == NO_KEY:
            raise ConfigurationError(
                f"--agent {agent.kind}: name the model's endpoint with --base-url URL or "
                "HERMES_QUEUE_MODEL_BASE_URL (for OpenAI's: set OPENAI_API_KEY)"
            )


def own_endpoints(base_url: str | None) -> dict[str, str]:
    """The setting that makes this user's own worker trust the endpoints that the user names."""
    trusted = ",".join(filter(None, (base_url, ModelSettings().trusted_urls)))
    return {f"{PREFIX}MODEL_TRUSTED_URLS": trusted} if trusted else {}


def own_records(agent: AgentSpec) -> dict[str, str]:
    """The setting that makes this user's own worker open the records file that the user names."""
    path = agent.params.get("path")
    if agent.kind != "replay" or not isinstance(path, str):
        return {}
    root = Path(path).parent if Path(path).is_absolute() else Path.cwd()
    return {f"{PREFIX}PATHS_REPLAY": str(root)}
