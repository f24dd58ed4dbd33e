"""SWE-smith rows: a repository with a bug that the agent has to fix, and the tests that show it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hermes_queue.errors import ConfigurationError
from producers.base import Producer, main
from producers.environments import own_environment, read_environments, with_environment
from producers.run.flags import Options, at_least, flag, switch

if TYPE_CHECKING:
    from producers.run.options import ProducerOptions
    from producers.source import SelectedItem

_EXAMPLES = """\
SWE-smith:
  one of your own rows (see also tools.make_bugs), with the gold fix:
    python -m producers.swe_smith --dataset rows.jsonl --instance-id ID
  the public dataset, with repositories from a mirror directory; its rows have no environments,
  so make them with producers.make_environment; first check that everything fits together:
    python -m producers.swe_smith --dataset SWE-bench/SWE-smith --repo-base-url /srv/mirrors \\
        --environments environments.json --check
  rows that name an image and no environment run in it (SWE-smith, SWE-rebench, R2E-Gym); those of
  SWE-bench and SWE-Gym name none, so say whose they are:
    python -m producers.swe_smith --dataset SWE-bench/SWE-bench_Verified --split test \\
        --sandbox docker --images swe-bench --check
  each known way to cheat the grader must score 0:
    python -m producers.swe_smith --items 2 --agent tamper

"""


def image_template(text: str) -> str:
    """An argparse type: see `envs.swe.images.names.check_template`."""
    from envs.swe.images.names import check_template

    try:
        return check_template(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@dataclass(frozen=True)
class SweSmithOptions(Options):
    """Options that only these rows have."""

    title: ClassVar[str] = "SWE-smith"
    repo_base_url: str | None = flag(
        "clone <URL>/<repo>.git for rows from git; may be a local directory (default: the row's)",
        metavar="URL",
    )
    environments: Path | None = flag(
        "file that maps repositories (owner/name, or owner/name@VERSION for rows of one `version`) "
        "to the environment of their rows (JSON, TOML or YAML, see producers.make_environment); a "
        "row's own environment takes precedence",
        type=Path,
        metavar="FILE",
    )
    images: str | None = flag(
        "image of rows that name none: swe-bench, swe-gym, or a template such as "
        "'registry/eval.{id_1776}:latest' with {id} (the instance id in small letters), {id_1776} "
        "or {id_s} (the same with _1776_ or _s_ for __)",
        type=image_template,
        metavar="NAME",
    )
    no_images: bool = switch(
        "run rows that name an image outside of it, with --environments or their own environment"
    )
    evaluation: bool = switch(
        "mark all rows as an evaluation, whose trajectories no dataset takes; those of SWE-bench "
        "and of other known benchmarks are marked anyway"
    )
    check: bool = switch(
        "fetch sources and images, apply patches, build environments and run the known fixes on "
        "this machine, and list all faults; enqueues nothing"
    )
    check_runs: int = flag(
        "with --check, run the tests of each row N times with its known fix, in other orders, to "
        "find flaky ones; 0: run no test",
        default=3,
        type=at_least(0),
        metavar="N",
    )
    python: str | None = flag(
        "set up and grade with this Python instead of the row's or the worker's", metavar="X.Y"
    )
    max_tests: int | None = flag(
        "skip rows with more tests than N (default: no limit)", type=at_least(1), metavar="N"
    )


def _prepare(row: dict[str, Any], options: SweSmithOptions) -> dict[str, Any]:
    """Apply the flags; `--repo-base-url` and `--python` override the row."""
    if options.evaluation:
        row = {**row, "evaluation": True}
    if options.environments is not None:
        row = with_environment(row, read_environments(options.environments))
    if options.python is not None and (own := own_environment(row)) is not None:
        row = {**row, "environment": {**own, "python": options.python}}
    row = _with_image(row, options)
    if options.repo_base_url is None:
        return row
    row = {**row, "repo_base_url": absolute_base_url(options.repo_base_url)}
    source = row.get("source")
    if isinstance(source, Mapping) and source.get("repo_base_url"):
        row["source"] = {**source, "repo_base_url": row["repo_base_url"]}
    return row


def _with_image(row: dict[str, Any], options: SweSmithOptions) -> dict[str, Any]:
    """Apply `--images` and `--no-images`; with `--repo-base-url` repositories come from there.

    A row that cannot be read is left to the validation of rows, which reports row and column.
    """
    if row.get("source") or row.get("environment"):
        return row
    from envs.swe.images.names import image_of, stated_image
    from envs.swe.images.rows import with_image

    if options.no_images or options.repo_base_url is not None:
        return {**row, "source": {"type": "git"}}
    if options.images is not None and stated_image(row) is None and row.get("instance_id"):
        row = {**row, "image": image_of(str(row["instance_id"]), options.images)}
    try:
        return with_image({key: value for key, value in row.items() if value is not None})
    except ValueError:
        return row


def absolute_base_url(base_url: str) -> str:
    """The URL, or a local directory as an absolute path: workers run in another directory."""
    path = Path(base_url).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if path.is_absolute() or base_url.startswith((".", "~")):
        raise ConfigurationError(f"--repo-base-url: directory {base_url} does not exist")
    return base_url


def _skip_reason(row: dict[str, Any], options: SweSmithOptions) -> str | None:
    from envs.swe.item import skip_reason

    reason = skip_reason(row)
    if reason is None and options.max_tests is not None:
        tests = _count(row.get("FAIL_TO_PASS")) + _count(row.get("PASS_TO_PASS"))
        if tests > options.max_tests:
            return f"more than {options.max_tests} tests (--max-tests)"
    return reason


def _evaluation(dataset: str, split: str | None) -> bool:
    from envs.swe.evaluations import is_benchmark

    return is_benchmark(dataset, split)


def _check(items: Sequence[SelectedItem], options: ProducerOptions) -> int | None:
    if not options.own.check:
        return None
    from producers.check_rows import check_rows

    return check_rows(items, options)


def _count(test_ids: object) -> int:
    """Number of test ids, given as a list or as JSON; 0 if validation will refuse them."""
    if isinstance(test_ids, str):
        try:
            test_ids = json.loads(test_ids)
        except ValueError:
            return 0
    return len(test_ids) if isinstance(test_ids, list | tuple) else 0


PRODUCER = Producer(
    name="swe_smith",
    env="swe_smith",
    options=SweSmithOptions,
    description="Repositories with a bug and the tests that show it, as trajectory jobs.",
    prepare=_prepare,
    skip_reason=_skip_reason,
    evaluation=_evaluation,
    check=_check,
    examples=_EXAMPLES,
)

if __name__ == "__main__":
    sys.exit(main(PRODUCER))
