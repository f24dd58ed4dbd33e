"""The options that all producers share, one class for each group of flags.

Imports nothing heavy: `--help` is instant.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hermes_queue import extensions
from producers.run.flags import Options, flag, switch
from producers.run.numbers import at_least, number
from producers.run.sandbox_options import SandboxOptions

if TYPE_CHECKING:
    from producers.base import Producer

DEFAULT_ITEMS = 10
DEFAULT_REFILLS = 2
"""At 3 % infrastructure failures every fifth group of 8 would have a hole without refills."""
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
    """Which rows of which dataset a run uses."""

    title: ClassVar[str] = "which rows"
    items: int | str | None = flag(
        f"number of rows to use (default: {DEFAULT_ITEMS}; with --instance-id: all named)",
        type=_count_or_all,
        metavar="N|all",
    )
    """A number, or "all"."""
    dataset: str | None = flag(
        "bundled (default), PATH.jsonl[.gz], PATH.parquet or Hugging Face OWNER/NAME[:CONFIG]",
        metavar="SOURCE",
    )
    split: str | None = flag("split of a Hugging Face dataset (default: train)")
    shuffle: bool = switch("take the rows in random order")
    seed: int = flag("seed of --shuffle: same seed, same order (default: 0)", default=0, type=int)
    offset: int = flag("pass over the first N rows", default=0, type=at_least(0), metavar="N")
    instance_id: tuple[str, ...] = flag(
        "use only this row; may be given several times", default=(), metavar="ID"
    )
    cycle: bool = switch("start over when the dataset ends, until --items rows are reached")


@dataclass(frozen=True)
class AgentOptions(Options):
    """Who acts, and with which model."""

    title: ClassVar[str] = "who acts"
    kind: str = flag(
        "openai, or a script that needs no model: oracle (default, applies the gold answer),"
        " nop, replay, garbage, tamper, slow; your own: that of a plugin, or package.module:AGENT",
        default="oracle",
        spelled="--agent",
        metavar="KIND",
    )
    model: str | None = flag("model name at the endpoint; --agent openai needs it")
    base_url: tuple[str, ...] = flag(
        "endpoint (default: the worker's own setting); of several, given one by one, each"
        " group uses one, and another when that fails",
        default=(),
        metavar="URL",
    )
    temperature: float | None = flag("sampling temperature", type=number(0), metavar="T")
    sampling: tuple[tuple[str, Any], ...] = flag(
        "any other parameter for the endpoint, e.g. top_p=0.95; VALUE is JSON or text",
        default=(),
        type=_key_value,
        metavar="KEY=VALUE",
    )
    params: tuple[tuple[str, Any], ...] = flag(
        "parameter of the agent, e.g. tools=prompted for openai, seconds=5 for slow",
        default=(),
        spelled="--agent-param",
        type=_key_value,
        metavar="KEY=VALUE",
    )
    tamper_case: str | None = flag(
        "with --agent tamper: the one way of cheating to try (default: each in a sample)",
        metavar="CASE",
    )


@dataclass(frozen=True)
class RunOptions(Options):
    """The run and how it is queued."""

    title: ClassVar[str] = "the run"
    run_id: str | None = flag(
        "continue this run, or name a new one (default: made up)", metavar="ID"
    )
    env: str = flag(
        "rules: a module in envs/, that of a plugin, or package.module:ENV (default: %(default)s)",
        default="",
        metavar="NAME",
    )
    priority: int = flag(
        "0 to 2 are served first, then 3 to 5, 6 to 8 and 9, on all lanes of a worker (default: 5)",
        default=5,
        type=at_least(0, 9),
        metavar="0-9",
    )
    policy_version: str | None = flag(
        "policy version that the jobs ask for: sent to the endpoint, and recorded",
        metavar="VERSION",
    )
    lane: str = flag("queue lane (default: train)", default="train")
    profile: str = flag(
        "sandbox profile, as the workers' own settings describe it (default: default)",
        default="default",
        metavar="NAME",
    )
    concurrency: int | None = flag(
        "trajectories at once where everything runs here (default: processors, at most 8)",
        type=at_least(1, 10_000),
        metavar="N",
    )


@dataclass(frozen=True)
class GroupOptions(Options):
    """Samples of one item."""

    title: ClassVar[str] = "groups"
    group_size: int | None = flag(
        "samples per item (default: 1)", type=at_least(1, 1024), metavar="N"
    )
    max_refills: int | None = flag(
        "new samples in place of members that failed for good for reasons of infrastructure"
        f" (default: {DEFAULT_REFILLS} for groups of several, else 0)",
        type=at_least(0, 1024),
        metavar="N",
    )
    extra_samples: int = flag(
        "start K more than the group needs, keep the first to be measured, revoke the rest;"
        " faster, but it favours short trajectories (default: 0)",
        default=0,
        type=at_least(0, 1024),
        metavar="K",
    )
    drop_zero_variance: bool = switch(
        "do not publish groups whose scores are all the same; they are counted"
    )
    stop_after_equal: int = flag(
        "close a group early when its first N scores are all the same (default: never)",
        default=0,
        type=at_least(0, 1024),
        metavar="N",
    )
    on_incomplete: Literal["publish", "drop"] = flag(
        "publish or drop a group that cannot be measured in full (default: publish)",
        default="publish",
        choices=("publish", "drop"),
    )


@dataclass(frozen=True)
class StalenessOptions(Options):
    """Samples of an old policy."""

    title: ClassVar[str] = "samples of an old policy"
    max_policy_lag: int | None = flag(
        "a sample is stale when the run's policy is more than N versions ahead of it at its"
        " publication (default: never); the version is set with `hermes-queue run policy`",
        type=at_least(0),
        metavar="N",
    )
    on_stale: Literal["label", "drop", "requeue"] = flag(
        "label or drop samples beyond --max-policy-lag, or make new ones in their place"
        " (default: label)",
        default="label",
        choices=("label", "drop", "requeue"),
    )
    max_requeues: int | None = flag(
        "new samples per group in place of stale ones (default: the group size)",
        type=at_least(0, 1024),
        metavar="N",
    )


def _timeout(stage: str, text: str) -> Any:
    return flag(
        f"time limit of {text}", spelled=f"--{stage}-timeout", type=_POSITIVE, metavar="SECONDS"
    )


@dataclass(frozen=True)
class LimitOptions(Options):
    """Limits of one attempt; fields as in `Limits`, None where that decides."""

    title: ClassVar[str] = "limits of one attempt"
    max_turns: int | None = flag("limit of model turns", type=at_least(1, 10_000), metavar="N")
    max_tokens: int | None = flag(
        "limit of completion tokens of all turns", type=at_least(1), metavar="N"
    )
    max_cost_usd: float | None = flag(
        "limit of the cost of all model calls", spelled="--max-cost", type=_POSITIVE, metavar="USD"
    )
    observation_bytes: int | None = flag(
        "longer tool output reaches the model as head and tail (default: 16384)",
        type=at_least(256),
        metavar="N",
    )
    max_format_errors: int | None = flag(
        "turns in a row without one valid tool call after which the agent is stopped (default: 3)",
        type=at_least(1),
        metavar="N",
    )
    tool_timeout_s: float | None = _timeout("tool", "one tool call")
    setup_timeout_s: float | None = _timeout("setup", "setting the workspace up")
    agent_timeout_s: float | None = _timeout("agent", "all turns together")
    verify_timeout_s: float | None = _timeout("verify", "grading")
    total_timeout_s: float | None = _timeout("total", "all attempts together")


@dataclass(frozen=True)
class BudgetOptions(Options):
    """Budgets of the run; fields as `set_budgets` takes them."""

    title: ClassVar[str] = "budgets of the run; it pauses when one is spent"
    cost_usd: float | None = flag(
        "cost of all model calls of the run",
        spelled="--budget-cost",
        type=_POSITIVE,
        metavar="USD",
    )
    tokens: float | None = flag(
        "prompt and completion tokens of the run together",
        spelled="--budget-tokens",
        type=_POSITIVE,
        metavar="N",
    )
    wall_s: float | None = flag(
        "seconds since the run's first enqueue",
        spelled="--budget-wall",
        type=_POSITIVE,
        metavar="SECONDS",
    )


@dataclass(frozen=True)
class OutputOptions(Options):
    """What the command shows, and where records go."""

    title: ClassVar[str] = "output"
    out: Path | None = flag(
        "JSON lines, one scored trajectory each; appended to"
        " (default when everything runs here: results/<run-id>.jsonl)",
        type=Path,
        metavar="PATH",
    )
    follow: bool = switch("wait for the run and show its results")
    dry_run: bool = switch("read and validate the rows, enqueue nothing")
    expect_score: float | None = flag(
        "with results: exit 1 unless every trajectory scored S (to validate rows: 1 with"
        " --agent oracle, 0 with --agent nop or tamper)",
        type=float,
        metavar="S",
    )
    json: bool = switch("summary as one JSON object on stdout")
    quiet: bool = switch("no progress, no table")
    log_level: str = flag(
        "log level of the worker started here (default: INFO)",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )


@dataclass(frozen=True)
class ProducerOptions:
    """All that the command line of a producer says."""

    rows: RowOptions
    agent: AgentOptions
    run: RunOptions
    sandbox: SandboxOptions
    groups: GroupOptions
    staleness: StalenessOptions
    limits: LimitOptions
    budgets: BudgetOptions
    output: OutputOptions
    own: Any
    """An instance of the producer's `options`."""


_GROUPS: dict[str, type[Options]] = {
    "rows": RowOptions,
    "agent": AgentOptions,
    "run": RunOptions,
    "sandbox": SandboxOptions,
    "groups": GroupOptions,
    "staleness": StalenessOptions,
    "limits": LimitOptions,
    "budgets": BudgetOptions,
    "output": OutputOptions,
}
_EPILOG = """\
examples:
  two items, everything on this machine, no setup, no model:
    {command} --items 2
  check a dataset, enqueue nothing:
    {command} --dataset rows.jsonl --items all --dry-run
  a model behind an OpenAI-compatible endpoint, 8 samples per item:
    {command} --agent openai --model MODEL --base-url http://127.0.0.1:8000/v1 \\
        --temperature 1.0 --group-size 8
  a fleet: workers run `celery -A hermes_queue worker`, this only enqueues and watches:
    HERMES_QUEUE_REDIS_URL=redis://host:6379/0 {command} --items 500 --follow
  go on with a run that was interrupted (only what is missing is made):
    {command} --items 500 --run-id RUN-ID

exit codes: 0 everything published (and measured, where watched) | 1 some failed | 2 wrong flag,
  setting or row | 3 this machine cannot isolate slots | 4 Redis | 130 interrupted
"""


def build_parser(producer: Producer) -> argparse.ArgumentParser:
    """The parser of a producer's command line."""
    dot = "." if producer.name in extensions.own("producer") else " "
    command = f"python -m producers{dot}{producer.name}"
    parser = argparse.ArgumentParser(
        prog=command,
        description=producer.description
        + " Without HERMES_QUEUE_REDIS_URL everything runs on this machine and stops at the end;"
        " with it, jobs are only enqueued.",
        epilog=producer.examples + _EPILOG.format(command=command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for group in _GROUPS.values():
        group.add(parser, **{"env": producer.env} if group is RunOptions else {})
    producer.options.add(parser)
    return parser


def parse(producer: Producer, argv: Sequence[str] | None = None) -> ProducerOptions:
    """What `argv` says, or the process's own arguments.

    Raises:
        SystemExit: for `--help` and for flags that cannot be parsed (exit code 2).
    """
    namespace = build_parser(producer).parse_args(argv)
    shared: dict[str, Any] = {name: group.of(namespace) for name, group in _GROUPS.items()}
    return ProducerOptions(**shared, own=producer.options.of(namespace))
