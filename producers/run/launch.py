"""One run of a producer, top to bottom, after its options have been parsed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from envs.base import load_env
from hermes_queue.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_ISOLATION,
    ConfigurationError,
    HermesQueueError,
)
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec
from hermes_queue.settings import PREFIX, ModelSettings, RedisSettings
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from producers.run.dataset import open_dataset
from producers.run.follow import Follower, refuse_without_results
from producers.run.options import ProducerOptions
from producers.run.plan import Plan, make_plan
from producers.run.report import Report, members_by_group
from producers.run.selection import SelectedItems, select
from producers.run.sending import Sending, Stopped
from producers.source import Producer

if TYPE_CHECKING:
    from hermes_queue.broker.embedded import Embedded

MAX_EMBEDDED_CONCURRENCY = 8
"""Default limit: a trajectory of an SWE env keeps a processor busy while it is graded."""


def run(producer: Producer, options: ProducerOptions) -> int:
    """Validate everything, enqueue, and follow the run if its results are requested.

    Raises:
        HermesQueueError: see its `exit_code`; if validation failed, nothing was sent.
        IsolationUnavailable: the embedded worker cannot isolate slots.
    """
    options.sandbox.worker_settings()
    env = load_env(options.run.env)
    plan = make_plan(producer, env, options)
    rows = options.rows
    dataset = open_dataset(
        rows.dataset or producer.dataset, bundled=producer.bundled, split=rows.split
    )
    selection = select(producer, env, dataset, options)
    plan.check(selection)
    code: int | None = producer.call("check", selection.items, options, place=dataset.name)
    if code is not None:
        return code
    from hermes_queue.broker.embedded import should_embed

    if options.output.dry_run:
        return dry(plan, selection)
    if should_embed(RedisSettings()):
        options.sandbox.check_profile(options.run.profile)
        return embedded(plan, selection)
    options.sandbox.refuse()
    return remote(plan, selection)


def dry(plan: Plan, selection: SelectedItems) -> int:
    """Report what would be enqueued."""
    report = Report.of(plan, selection)
    say = report.progress.say
    sizes = [item.size_bytes for item in selection.items]
    for item in selection.items[:20]:
        say(f"  {item.key}  {plan.size_of(item)} sample(s), {item.size_bytes} bytes")
    if len(sizes) > 20:
        say(f"  ... and {len(sizes) - 20} more")
    say(f"dry run: nothing was enqueued; largest row {max(sizes)} bytes")
    return report.finish(0)


def remote(plan: Plan, selection: SelectedItems) -> int:
    """Enqueue for a fleet of workers; watch if results are requested."""
    output = plan.options.output
    follows = output.follow or output.out is not None
    if output.expect_score is not None and not follows:
        raise ConfigurationError("--expect-score needs results: add --follow or --out PATH")
    report = Report.of(plan, selection)
    report.summary.mode = "remote"
    sending = Sending(plan, selection, report)
    with closing(Ledger.connect()) as ledger:
        if not follows:
            return _send(ledger, sending)
        refuse_without_results(ledger)
        with JsonlSink(output.out) if output.out else nullcontext() as sink:
            return watch(ledger, sending, report.groups, sink)


def _send(ledger: Ledger, sending: Sending) -> int:
    """Enqueue, and leave the results to other consumers."""
    report = sending.report
    again = f"the same command with --run-id {report.summary.run_id}"
    sending.open(ledger)
    try:
        with report.progress:
            sending.enqueue(ledger, report.groups)
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted while enqueueing; send the rest with {again}\n")
        return report.finish(EXIT_INTERRUPTED)
    report.progress.say(f"watch the run with {again} --follow")
    return report.finish(0)


def embedded(plan: Plan, selection: SelectedItems) -> int:
    """Do everything on this machine: private Redis, one worker, and a file of results."""
    report = Report.of(plan, selection)
    report.summary.mode = "embedded"
    default = Path("results") / f"{plan.run_id.replace(':', '_')}.jsonl"
    with JsonlSink(plan.options.output.out or default) as sink:
        groups = _missing_groups(plan, report, sink)
        if not groups:
            return report.results(0, sink)
        report.progress.say("starting a private Redis and a worker")
        with _embedded_worker(plan) as worker:
            report.progress.say(f"worker log: {worker.log_path}")
            with closing(Ledger.connect(url=worker.redis_url)) as ledger:
                sending = Sending(plan, selection, report)
                code = watch(ledger, sending, groups, sink, worker.check)
        if code == 0:  # otherwise keep the log for the user and the state for a rerun
            worker.discard()
        return code


def _missing_groups(plan: Plan, report: Report, sink: JsonlSink) -> dict[str, int]:
    """The groups that the file does not hold yet, with their sizes."""
    report.summary.out = str(sink.path)
    if sink.repaired_bytes:
        report.progress.say(
            f"{sink.path}: removed a truncated last line; its trajectory is made again"
        )
    written = members_by_group(sink)
    early = plan.group_policy.stop_after_equal or max(report.groups.values())
    groups = {g: size for g, size in report.groups.items() if written[g] < min(size, early)}
    if len(groups) < len(report.groups):
        report.progress.say(
            f"{len(report.groups) - len(groups)} of {len(report.groups)} groups are "
            f"already in {sink.path}"
        )
    return groups


def _embedded_worker(plan: Plan) -> Embedded:
    from hermes_queue.broker.embedded import Embedded

    options = plan.options
    return Embedded(
        run_id=plan.run_id,
        concurrency=options.run.concurrency or min(MAX_EMBEDDED_CONCURRENCY, os.cpu_count() or 1),
        lane=options.run.lane,
        log_level=options.output.log_level.lower(),
        settings={
            **options.sandbox.worker_settings(),
            **own_endpoints(plan.agent.base_url),
            **own_records(plan.agent),
        },
    )


def watch(
    ledger: Ledger,
    sending: Sending,
    groups: Mapping[str, int],
    sink: JsonlSink | None,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Enqueue and follow; on every ending, report what is on disk and how to continue."""
    plan, report = sending.plan, sending.report
    follower = Follower(
        ledger,
        plan.run_id,
        groups,
        lane=plan.options.run.lane,
        sink=sink,
        progress=report.progress,
        check=check,
        ends_when_paused=report.summary.mode == "embedded",
    )
    sending.open(ledger)
    try:
        with report.progress:
            asyncio.run(_send_and_follow(ledger, sending, groups, follower))
    except KeyboardInterrupt:
        report.say_interrupted(sink)
        report.take(follower, sink)
        return report.finish(EXIT_INTERRUPTED)
    except HermesQueueError:
        report.say_interrupted(sink)
        raise
    report.take(follower, sink)
    if follower.cancelled:
        sys.stderr.write(
            f"run {plan.run_id} was cancelled: {follower.cancelled} trajectories and "
            f"{len(follower.pending)} groups will not finish\n"
        )
    if follower.pause and follower.pending:
        report.say_paused(follower.pause, sink)
    code = EXIT_FAILED if follower.failed or follower.pending else 0
    if follower.isolation:
        sys.stderr.write(f"error: {follower.isolation}\n")
        code = EXIT_ISOLATION
    return report.results(code or report.unexpected(), sink)


async def _send_and_follow(
    ledger: Ledger, sending: Sending, groups: Mapping[str, int], follower: Follower
) -> None:
    """Follow while enqueueing: when the backlog is full, only consumed results make it shrink."""
    stop = threading.Event()
    sender = asyncio.ensure_future(asyncio.to_thread(sending.enqueue, ledger, groups, stop))
    following = asyncio.ensure_future(follower.run(sender))
    following.add_done_callback(lambda _: stop.set())
    try:
        with suppress(Stopped):  # the run is paused and ended before all jobs were sent
            await asyncio.gather(sender, following)
    finally:
        stop.set()
        following.cancel()
        await asyncio.gather(sender, following, return_exceptions=True)


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
