"""Options that all producers share, one class per group of flags.

Imports nothing heavy, so that `--help` is instant.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

from hermes_queue import extensions
from producers.known.options import KnownOptions
from producers.lock.flags import with_lock
from producers.lock.options import LockOptions
from producers.run.flags import Options, Parser, at_least, flag, number, switch
from producers.run.queueing.budgets import BudgetOptions
from producers.run.queueing.part import PartOptions
from producers.run.sandbox_options import SandboxOptions, chosen_backend
from producers.source import Producer

DEFAULT_ITEMS = 10
DEFAULT_REFILLS = 2
"""At 3 % infrastructure failures, every fifth group of 8 would be incomplete without refills."""
_POSITIVE = number(0, above=True)


def _count_or_all(text: str) -> int | str:
    return "all" if text == "all" else at_least(1)(text)


def _key_value(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


@dataclass(frozen=True)
class RowOptions(Options):
    """The rows that a run uses, and their dataset."""

    title: ClassVar[str] = "rows"
    items: int | str | None = flag(
        f"number of rows to use (default: {DEFAULT_ITEMS}; with --instance-id: all of these)",
        type=_count_or_all,
        metavar="N|all",
    )
    """A number, or "all"."""
    dataset: str | None = flag(
        "source of the rows: bundled (default), PATH.jsonl[.gz], PATH.parquet or "
        "OWNER/NAME[:CONFIG] on Hugging Face",
        metavar="SOURCE",
    )
    split: str | None = flag("split of a Hugging Face dataset (default: train)")
    shuffle: bool = switch("take the rows in random order")
    seed: int = flag("seed of --shuffle (default: 0)", default=0, type=int)
    offset: int = flag("skip the first N rows", default=0, type=at_least(0), metavar="N")
    instance_id: tuple[str, ...] = flag(
        "use only this row; may be repeated", default=(), metavar="ID"
    )
    cycle: bool = switch("repeat the dataset until --items rows are reached")


@dataclass(frozen=True)
class AgentOptions(Options):
    """The agent and its model."""

    title: ClassVar[str] = "agent"
    kind: str = flag(
        "agent: openai; command, a program in the slot (docs/programs.md); or a script without a"
        " model: oracle (default, applies the gold answer), nop, replay, garbage, tamper, slow; or"
        " a plugin's name, or package.module:AGENT",
        default="oracle",
        spelled="--agent",
        metavar="KIND",
    )
    model: str | None = flag(
        "model name at the endpoint; required by --agent openai and --agent command"
    )
    base_url: tuple[str, ...] = flag(
        "model endpoint (default: the worker's setting); may be repeated: each group then uses"
        " one of them, and another if that fails",
        default=(),
        metavar="URL",
    )
    temperature: float | None = flag("sampling temperature", type=number(0), metavar="T")
    sampling: tuple[tuple[str, Any], ...] = flag(
        "additional sampling parameter for the endpoint, e.g. top_p=0.95; VALUE is JSON or text",
        default=(),
        type=_key_value,
        metavar="KEY=VALUE",
    )
    params: tuple[tuple[str, Any], ...] = flag(
        "parameter of the agent, e.g. tools=prompted for openai, program=hermes-agent or"
        " program=FILE.toml:NAME for command, seconds=5 for slow; VALUE is JSON or text",
        default=(),
        spelled="--agent-param",
        type=_key_value,
        metavar="KEY=VALUE",
    )
    tamper_case: str | None = flag(
        "with --agent tamper: cheat only in this way (default: every known way, one per sample)",
        metavar="CASE",
    )
    judge: Path | None = flag(
        "TOML or JSON file with a model that judges each trajectory (docs/plugins/judge.md)",
        type=Path,
        metavar="FILE",
    )


@dataclass(frozen=True)
class RunOptions(Options):
    """The run and how it is queued."""

    title: ClassVar[str] = "the run"
    run_id: str | None = flag(
        "run to continue, or name of a new one (default: a generated id)", metavar="ID"
    )
    env: str = flag(
        "environment: a module in envs/, a plugin's name, or package.module:ENV"
        " (default: %(default)s)",
        default="",
        metavar="NAME",
    )
    priority: int = flag(
        "priority of the jobs among those of the run, 0 first; each step counts like 15 minutes of"
        " waiting (default: 5)",
        default=5,
        type=at_least(0, 9),
        metavar="0-9",
    )
    policy_version: str | None = flag(
        "policy version that the jobs request; sent to the endpoint, and recorded",
        metavar="VERSION",
    )
    lane: str = flag("queue lane (default: train)", default="train")
    profile: str = flag(
        "name of a sandbox profile in the workers' settings (default: default)",
        default="default",
        metavar="NAME",
    )
    concurrency: int | None = flag(
        "concurrent trajectories if everything runs on this machine"
        " (default: processors, at most 8)",
        type=at_least(1, 10_000),
        metavar="N",
    )


@dataclass(frozen=True)
class GroupOptions(Options):
    """Groups: the samples of one item."""

    title: ClassVar[str] = "groups"
    group_size: int | None = flag(
        "samples per item (default: 1; with --agent tamper: one per way to cheat)",
        type=at_least(1, 1024),
        metavar="N",
    )
    max_refills: int | None = flag(
        "new samples per group in place of members that failed for good because of the"
        f" infrastructure (default: {DEFAULT_REFILLS} if --group-size is above 1, else 0)",
        type=at_least(0, 1024),
        metavar="N",
    )
    extra_samples: int = flag(
        "start K additional samples per group, keep the first that are measured, revoke the rest;"
        " faster, but favours short trajectories (default: 0)",
        default=0,
        type=at_least(0, 1024),
        metavar="K",
    )
    drop_zero_variance: bool = switch(
        "count groups whose scores are all equal, but do not publish them"
    )
    stop_after_equal: int = flag(
        "close a group early if its first N scores are all equal (default: never)",
        default=0,
        type=at_least(0, 1024),
        metavar="N",
    )
    on_incomplete: Literal["publish", "drop"] = flag(
        "publish or drop a group whose members cannot all be measured (default: publish)",
        default="publish",
        choices=("publish", "drop"),
    )


@dataclass(frozen=True)
class StalenessOptions(Options):
    """Samples of an outdated policy."""

    title: ClassVar[str] = "samples of an old policy"
    max_policy_lag: int | None = flag(
        "a sample is stale if it is more than N policy versions old when it is published"
        " (default: never); `hermes-queue run policy` sets the run's current version",
        type=at_least(0),
        metavar="N",
    )
    on_stale: Literal["label", "drop", "requeue"] = flag(
        "label or drop samples older than --max-policy-lag, or run new ones in their place"
        " (default: label)",
        default="label",
        choices=("label", "drop", "requeue"),
    )
    max_requeues: int | None = flag(
        "new samples per group in place of stale ones (default: the group size)",
        type=at_least(0, 1024),
        metavar="N",
    )
    max_ahead: int | None = flag(
        "begin no new group while N groups have begun that the run's trainer has neither trained"
        " nor given up (default: no bound; see docs/trainers.md)",
        type=at_least(1),
        metavar="N",
    )


def _timeout(stage: str, text: str) -> Any:
    return flag(
        f"time limit of {text}", spelled=f"--{stage}-timeout", type=_POSITIVE, metavar="SECONDS"
    )


@dataclass(frozen=True)
class LimitOptions(Options):
    """Limits of one attempt. Fields as in `Limits`; None leaves its default."""

    title: ClassVar[str] = "limits of one attempt"
    max_turns: int | None = flag(
        "largest number of model turns", type=at_least(1, 10_000), metavar="N"
    )
    max_tokens: int | None = flag(
        "largest number of completion tokens in all turns together", type=at_least(1), metavar="N"
    )
    max_cost_usd: float | None = flag(
        "largest cost of all model calls", spelled="--max-cost", type=_POSITIVE, metavar="USD"
    )
    observation_bytes: int | None = flag(
        "size limit of a tool's output; of a longer one the model gets head and tail"
        " (default: 16384)",
        type=at_least(256),
        metavar="N",
    )
    max_format_errors: int | None = flag(
        "stop the agent after N consecutive turns without a valid tool call (default: 3)",
        type=at_least(1),
        metavar="N",
    )
    tool_timeout_s: float | None = _timeout("tool", "one tool call")
    setup_timeout_s: float | None = _timeout("setup", "setting the workspace up")
    agent_timeout_s: float | None = _timeout("agent", "all turns together")
    verify_timeout_s: float | None = _timeout("verify", "grading")
    total_timeout_s: float | None = _timeout("total", "all attempts together")


@dataclass(frozen=True)
class OutputOptions(Options):
    """Output of the command, and destination of its records."""

    title: ClassVar[str] = "output"
    out: Path | None = flag(
        "JSON lines file to append the scored trajectories to"
        " (default if everything runs on this machine: results/<run-id>.jsonl)",
        type=Path,
        metavar="PATH",
    )
    follow: bool = switch("wait for the run and show its results")
    dry_run: bool = switch("read and validate the rows, enqueue nothing")
    expect_score: float | None = flag(
        "exit 1 unless every trajectory scores S; needs results (to validate rows: 1 with"
        " --agent oracle, 0 with --agent nop or tamper)",
        type=float,
        metavar="S",
    )
    json: bool = switch("print the summary as one JSON object on stdout")
    quiet: bool = switch("show neither progress nor table")
    log_level: str = flag(
        "log level of the worker started here (default: INFO)",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )

    @property
    def follows(self) -> bool:
        """Whether results are read."""
        return self.follow or self.out is not None


@dataclass(frozen=True)
class ProducerOptions:
    """All options of a producer's command line."""

    rows: RowOptions
    agent: AgentOptions
    run: RunOptions
    part: PartOptions
    sandbox: SandboxOptions
    groups: GroupOptions
    staleness: StalenessOptions
    limits: LimitOptions
    budgets: BudgetOptions
    output: OutputOptions
    own: Any
    """An instance of the producer's `options`."""
    known: KnownOptions = field(default_factory=KnownOptions)
    locking: LockOptions = field(default_factory=LockOptions)


_GROUPS: dict[str, type[Options]] = get_type_hints(ProducerOptions)
del _GROUPS["own"]
_EPILOG = """\
examples:
  two items, everything on this machine, no setup, no model:
    {command} --items 2
  validate a dataset, enqueue nothing:
    {command} --dataset rows.jsonl --items all --dry-run
  a model behind an OpenAI-compatible endpoint, 8 samples per item:
    {command} --agent openai --model MODEL --base-url http://127.0.0.1:8000/v1 \\
        --temperature 1.0 --group-size 8
  the same with an unmodified program in the slot, whose model calls are captured:
    {command} --agent command --agent-param program=hermes-agent --model MODEL \\
        --base-url http://127.0.0.1:8000/v1
  a fleet: workers run `celery -A hermes_queue worker`, this command enqueues and watches:
    HERMES_QUEUE_REDIS_URL=redis://host:6379/0 {command} --items 500 --follow
  continue an interrupted run (only missing trajectories are made):
    {command} --items 500 --run-id RUN-ID

exit codes: 0 everything published (and measured, where watched) | 1 some failed | 2 wrong flag,
  setting or row | 3 this machine cannot isolate slots | 4 Redis | 130 interrupted
"""


def build_parser(producer: Producer, backend: str | None = None) -> argparse.ArgumentParser:
    """The parser of a producer's command line; `backend` is the sandbox backend that it names.

    Raises:
        ConfigurationError: there is no such backend.
    """
    dot = "." if producer.name in extensions.own("producer") else " "
    command = f"python -m producers{dot}{producer.name}"
    parser = Parser(
        prog=command,
        description=producer.description
        + " Without HERMES_QUEUE_REDIS_URL everything runs on this machine and stops at the end;"
        " with it, jobs are only enqueued.",
        epilog=producer.examples + _EPILOG.format(command=command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for group in _GROUPS.values():
        group.add(parser, env=producer.env, sandbox=backend)
    producer.options.add(parser)
    return parser


def parse(producer: Producer, argv: Sequence[str] | None = None) -> ProducerOptions:
    """The options in `argv`, or in the process's arguments.

    Raises:
        SystemExit: for `--help`.
        ConfigurationError: a flag is unknown or wrong, `--sandbox` names no backend, or
            `--from-lock` no lock for it.
    """
    argv = with_lock(producer, argv)
    namespace = build_parser(producer, chosen_backend(argv)).parse_args(argv)
    shared: dict[str, Any] = {name: group.of(namespace) for name, group in _GROUPS.items()}
    return ProducerOptions(**shared, own=producer.options.of(namespace))
