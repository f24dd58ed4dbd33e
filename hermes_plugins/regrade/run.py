"""`hermes-queue regrade`, top to bottom, after its flags have been parsed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from envs.base import load_env
from hermes_plugins.regrade.comparison import RegradeReport
from hermes_plugins.regrade.plan import default_run_id, plan_regrade
from hermes_plugins.regrade.records import PassedOver, RecordedWork, read_groups, recorded_work
from hermes_queue.agent.kinds.recorded import KIND
from hermes_queue.errors import EXIT_INTERRUPTED, ConfigurationError, InputError
from hermes_queue.ledger import Ledger
from hermes_queue.results.replay import replay
from hermes_queue.settings import RedisSettings
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from producers.run.flags import Options
from producers.run.follow import refuse_without_results
from producers.run.launch import Launch
from producers.run.options import (
    AgentOptions,
    LimitOptions,
    OutputOptions,
    ProducerOptions,
    RowOptions,
    RunOptions,
)
from producers.run.report import Report
from producers.run.sandbox_options import SandboxOptions
from producers.run.single import producer_of
from producers.run.words import options_in
from producers.source import Producer

_GROUPS: dict[str, type[Options]] = {"sandbox": SandboxOptions, "limits": LimitOptions}


@dataclass(frozen=True, slots=True)
class RegradeRequest:
    """What the command's own flags say."""

    source: str
    """A file of records, or a run id."""
    env: str | None
    """Only records of this env."""
    instance_ids: frozenset[str]
    """Only records of these instances; empty = of all."""
    rows: RowOptions
    """Where today's rows are; its `instance_id` is not used."""
    run: RunOptions
    output: OutputOptions
    expect_same: bool
    """Exit with 1 if a score has changed."""
    more: Sequence[str]
    """Flags about sandbox and limits, and those of the env's producer."""
    sample: int | None = None
    """The number of records that are regraded, by chance; None = all."""


def regrade(request: RegradeRequest) -> int:
    """Regrade everything in the source that can be, one env after the other; the exit code.

    Raises:
        HermesQueueError: see its `exit_code`; if the input is wrong, nothing was enqueued.
        IsolationUnavailable: the embedded worker cannot isolate slots.
    """
    from hermes_queue.broker.embedded import should_embed

    embeds, passed_over = should_embed(RedisSettings()), PassedOver()
    groups = read_groups(request.source, stream=not embeds, passed_over=passed_over)
    works = recorded_work(
        groups,
        passed_over,
        lambda record: (
            request.env in (None, record.env)
            and (not request.instance_ids or record.instance_id in request.instance_ids)
        ),
        env=request.env,
    )
    by_env: dict[str, list[RecordedWork]] = defaultdict(list)
    for work in _sampled(works, request):
        by_env[work.env].append(work)
    if not by_env:
        why = passed_over.lines() or ["no finished record was found"]
        raise InputError("; ".join([f"{request.source}: nothing can be regraded", *why]))
    if len(by_env) > 1 and (request.rows.dataset or request.run.run_id or request.output.out):
        raise ConfigurationError(
            f"{request.source} has records of the envs {', '.join(sorted(by_env))}: with "
            "--dataset, --run-id or --out choose one with --env"
        )
    launches = []
    for env, of_env in sorted(by_env.items()):
        launches.append(_launch(request, env, of_env, passed_over, embeds=embeds))
        passed_over = PassedOver()
    code = 0
    for launch in launches:
        code = max(code, launch.go())
        if code == EXIT_INTERRUPTED:
            break
    return code


def _sampled(works: Sequence[RecordedWork], request: RegradeRequest) -> Sequence[RecordedWork]:
    """At most `sample` of them, by chance; the same ones for the same run id, and in order."""
    if request.sample is None or len(works) <= request.sample:
        return works
    chance = random.Random(request.run.run_id or "")  # noqa: S311 - a choice, not a secret
    by_id = sorted(range(len(works)), key=lambda n: works[n].record.trajectory_id)
    return [works[n] for n in sorted(chance.sample(by_id, request.sample))]


def _launch(
    request: RegradeRequest,
    name: str,
    works: Sequence[RecordedWork],
    passed_over: PassedOver,
    *,
    embeds: bool,
) -> RegradeLaunch:
    producer, env = producer_of(name), load_env(name)
    options = _options(request, producer, name)
    options.sandbox.worker_settings()
    if options.run.run_id in {work.record.run_id for work in works}:
        raise ConfigurationError(
            f"--run-id {options.run.run_id} is the run of the old records: choose another one"
        )
    plan, selection = plan_regrade(producer, env, options, works, passed_over)
    mode = "dry-run" if options.output.dry_run else "embedded" if embeds else "remote"
    launch = RegradeLaunch(producer, plan, selection, mode)
    assert isinstance(launch.report, RegradeReport)  # noqa: S101 - see `report_type`
    launch.report.expect_same = request.expect_same
    launch.report.not_regraded = passed_over.reasons
    source, out = Path(request.source), options.output.out or launch.default_out
    if source.exists() and out.exists() and out.samefile(source):
        raise ConfigurationError(f"--out {out} is the file of the old records: choose another one")
    if mode == "remote":
        options.sandbox.refuse()
    elif mode == "embedded":
        options.sandbox.check_profile(options.run.profile)
    return launch


class RegradeLaunch(Launch):
    """The jobs of one regrade on their way."""

    report_type: ClassVar[type[Report]] = RegradeReport

    def go(self) -> int:
        """Regrade in the mode of the report."""
        if self.report.summary.mode == "dry-run":
            return self.dry()
        return self.embedded() if self.report.summary.mode == "embedded" else self.remote()

    def remote(self) -> int:
        """Enqueue what is not finished yet for a fleet of workers, and watch it."""
        path = self.options.output.out or self.default_out
        with closing(Ledger.connect()) as ledger, JsonlSink(path) as sink:
            refuse_without_results(ledger)
            if ledger.run_status(self.plan.run_id).total:
                for group in replay(run=self.plan.run_id, allow_evaluation=True):
                    sink.write(group.members)
            groups: Mapping[str, int] = self._missing_groups(sink)
            if not groups:
                return self.report.results(0, sink)
            return self._watch(ledger, groups, sink)


def _options(request: RegradeRequest, producer: Producer, env: str) -> ProducerOptions:
    run_id = request.run.run_id or default_run_id(env, request.source)
    return options_in(
        request.more,
        _GROUPS,
        producer,
        command="hermes-queue regrade",
        rows=request.rows,
        agent=AgentOptions(kind=KIND),
        run=replace(request.run, run_id=run_id, env=env),
        output=request.output,
    )
