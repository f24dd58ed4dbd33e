"""The command line that all producers share. Imports nothing heavy: `--help` is instant."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.run import sandbox_flags
from producers.run.numbers import at_least, number

if TYPE_CHECKING:
    from producers.base import Producer

DEFAULT_ITEMS = 10
DEFAULT_REFILLS = 2
"""At 3 % infrastructure failures every fifth group of 8 would have a hole without refills."""
_EPILOG = """\
examples:
  two items, everything on this machine, no setup, no model:
    python -m producers.{name} --items 2
  check a dataset, enqueue nothing:
    python -m producers.{name} --dataset rows.jsonl --items all --dry-run
  a model behind an OpenAI-compatible endpoint, 8 samples per item:
    python -m producers.{name} --agent openai --model MODEL --base-url http://127.0.0.1:8000/v1 \\
        --temperature 1.0 --group-size 8
  a fleet: workers run `celery -A hermes_queue worker`, this only enqueues and watches:
    HERMES_QUEUE_REDIS_URL=redis://host:6379/0 python -m producers.{name} --items 500 --follow
  go on with a run that was interrupted (only what is missing is made):
    python -m producers.{name} --items 500 --run-id RUN-ID

exit codes: 0 everything published (and measured, where watched) | 1 some failed | 2 wrong flag,
  setting or row | 3 this machine cannot isolate slots | 4 Redis | 130 interrupted
"""


def build_parser(producer: Producer) -> argparse.ArgumentParser:
    """The parser of `python -m producers.<name>`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m producers.{producer.name}",
        description=producer.description
        + " Without HERMES_QUEUE_REDIS_URL everything runs on this machine and stops at the end;"
        " with it, jobs are only enqueued.",
        epilog=producer.examples + _EPILOG.format(name=producer.name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_rows(parser.add_argument_group("which rows"))
    _add_agent(parser.add_argument_group("who acts"))
    _add_run(parser.add_argument_group("the run"), producer)
    sandbox_flags.add(parser.add_argument_group("sandboxes, where everything runs here"))
    _add_groups(parser.add_argument_group("groups"))
    _add_staleness(parser.add_argument_group("samples of an old policy"))
    _add_limits(parser.add_argument_group("limits of one attempt"))
    _add_budgets(parser.add_argument_group("budgets of the run; it pauses when one is spent"))
    _add_output(parser.add_argument_group("output"))
    producer.add_flags(parser)
    return parser


def _add_rows(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--items",
        type=_count_or_all,
        metavar="N|all",
        help=f"rows to use (default: {DEFAULT_ITEMS}; with --instance-id: all named)",
    )
    group.add_argument(
        "--dataset",
        metavar="SOURCE",
        help="bundled (default), PATH.jsonl[.gz], PATH.parquet or Hugging Face OWNER/NAME[:CONFIG]",
    )
    group.add_argument("--split", help="of a Hugging Face dataset (default: train)")
    group.add_argument("--shuffle", action="store_true", help="take the rows in random order")
    group.add_argument(
        "--seed", type=int, default=0, help="of --shuffle: same seed, same order (default: 0)"
    )
    group.add_argument(
        "--offset", type=at_least(0), default=0, metavar="N", help="pass over the first N rows"
    )
    group.add_argument(
        "--instance-id",
        action="append",
        default=[],
        metavar="ID",
        help="only this row; may be given several times",
    )
    group.add_argument(
        "--cycle",
        action="store_true",
        help="start over when the dataset ends, until --items rows are reached",
    )


def _add_agent(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--agent",
        default="oracle",
        metavar="KIND",
        help="openai, or a script that needs no model: oracle (default, applies the gold answer),"
        " nop, replay, garbage, tamper, slow; your own: package.module:Factory",
    )
    group.add_argument("--model", help="model name at the endpoint; --agent openai needs it")
    group.add_argument(
        "--base-url",
        metavar="URL",
        action="append",
        help="endpoint (default: the worker's own setting); of several, given one by one, each"
        " group uses one, and another when that fails",
    )
    group.add_argument("--temperature", type=number(0), metavar="T", help="sampling temperature")
    group.add_argument(
        "--sampling",
        type=_key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other parameter for the endpoint, e.g. top_p=0.95; VALUE is JSON or text",
    )
    group.add_argument(
        "--agent-param",
        type=_key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="parameter of the agent, e.g. tools=prompted for openai, seconds=5 for slow",
    )
    group.add_argument(
        "--tamper-case",
        metavar="CASE",
        help="with --agent tamper: the one way of cheating to try (default: each in a sample)",
    )


def _add_run(group: argparse._ArgumentGroup, producer: Producer) -> None:
    group.add_argument(
        "--run-id", metavar="ID", help="continue this run, or name a new one (default: made up)"
    )
    group.add_argument(
        "--env",
        default=producer.env,
        metavar="NAME",
        help=f"rules: a module in envs/ or package.module:Attribute (default: {producer.env})",
    )
    group.add_argument(
        "--priority",
        type=at_least(0, 9),
        default=5,
        metavar="0-9",
        help="0 to 2 are served first, then 3 to 5, 6 to 8 and 9, on all lanes of a worker"
        " (default: 5)",
    )
    group.add_argument(
        "--policy-version",
        metavar="VERSION",
        help="the one that the jobs want: sent to the endpoint, and recorded",
    )
    group.add_argument("--lane", default="train", help="queue lane (default: train)")
    group.add_argument(
        "--profile",
        default="default",
        metavar="NAME",
        help="sandbox profile, as the workers' own settings describe it (default: default)",
    )
    group.add_argument(
        "--concurrency",
        type=at_least(1, 10_000),
        metavar="N",
        help="trajectories at once where everything runs here (default: processors, at most 8)",
    )


def _add_groups(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--group-size",
        type=at_least(1, 1024),
        metavar="N",
        help="samples per item (default: 1)",
    )
    group.add_argument(
        "--max-refills",
        type=at_least(0, 1024),
        metavar="N",
        help="new samples in place of members that failed for good for reasons of infrastructure"
        f" (default: {DEFAULT_REFILLS} for groups of several, else 0)",
    )
    group.add_argument(
        "--extra-samples",
        type=at_least(0, 1024),
        default=0,
        metavar="K",
        help="start K more than the group needs, keep the first to be measured, revoke the rest;"
        " faster, but it favours short trajectories (default: 0)",
    )
    group.add_argument(
        "--drop-zero-variance",
        action="store_true",
        help="do not publish groups whose scores are all the same; they are counted",
    )
    group.add_argument(
        "--stop-after-equal",
        type=at_least(0, 1024),
        default=0,
        metavar="N",
        help="close a group early when its first N scores are all the same (default: never)",
    )
    group.add_argument(
        "--on-incomplete",
        choices=("publish", "drop"),
        default="publish",
        help="what becomes of a group that cannot be measured in full (default: publish)",
    )


def _add_staleness(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-policy-lag",
        type=at_least(0),
        metavar="N",
        help="how many versions the run's policy may be ahead of a sample when that is published"
        " (default: any number); the version is set with `hermes-queue run policy`",
    )
    group.add_argument(
        "--on-stale",
        choices=("label", "drop", "requeue"),
        default="label",
        help="what becomes of samples beyond --max-policy-lag; requeue makes new ones in their"
        " place (default: label)",
    )
    group.add_argument(
        "--max-requeues",
        type=at_least(0, 1024),
        metavar="N",
        help="new samples per group in place of stale ones (default: the group size)",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-turns", type=at_least(1, 10_000), metavar="N", help="model turns")
    group.add_argument(
        "--max-tokens", type=at_least(1), metavar="N", help="completion tokens of all turns"
    )
    group.add_argument(
        "--max-cost", type=number(0, above=True), metavar="USD", help="cost of all model calls"
    )
    group.add_argument(
        "--observation-bytes",
        type=at_least(256),
        metavar="N",
        help="longer tool output reaches the model as head and tail (default: 16384)",
    )
    group.add_argument(
        "--max-format-errors",
        type=at_least(1),
        metavar="N",
        help="turns in a row without one valid tool call after which the agent is stopped"
        " (default: 3)",
    )
    for stage, text in (
        ("tool", "one tool call"),
        ("setup", "setting the workspace up"),
        ("agent", "all turns together"),
        ("verify", "grading"),
        ("total", "all attempts together"),
    ):
        group.add_argument(
            f"--{stage}-timeout", type=number(0, above=True), metavar="SECONDS", help=text
        )


def _add_budgets(group: argparse._ArgumentGroup) -> None:
    positive = number(0, above=True)
    group.add_argument(
        "--budget-cost", type=positive, metavar="USD", help="cost of all model calls"
    )
    group.add_argument(
        "--budget-tokens", type=positive, metavar="N", help="prompt and completion tokens together"
    )
    group.add_argument(
        "--budget-wall", type=positive, metavar="SECONDS", help="since the run's first enqueue"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="JSON lines, one scored trajectory each; appended to"
        " (default when everything runs here: results/<run-id>.jsonl)",
    )
    group.add_argument(
        "--follow", action="store_true", help="wait for the run and show its results"
    )
    group.add_argument(
        "--dry-run", action="store_true", help="read and validate the rows, enqueue nothing"
    )
    group.add_argument(
        "--expect-score",
        type=float,
        metavar="S",
        help="with results: exit 1 unless every trajectory scored S (to validate rows: 1 with"
        " --agent oracle, 0 with --agent nop or tamper)",
    )
    group.add_argument("--json", action="store_true", help="summary as one JSON object on stdout")
    group.add_argument("--quiet", action="store_true", help="no progress, no table")
    group.add_argument(
        "--log-level",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="of the worker started here (default: INFO)",
    )


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
