"""SWE-smith rows: a repository with a bug, the tests that show it, and the agent fixes it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_queue.errors import ConfigurationError
from producers.base import Producer, main
from producers.environments import own_environment, read_environments, with_environment
from producers.run.numbers import at_least

if TYPE_CHECKING:
    from producers.run.selection import SelectedItem

_EXAMPLES = """\
SWE-smith:
  rows of your own (see also producers.make_bugs), one of them, with the gold fix:
    python -m producers.swe_smith --dataset rows.jsonl --instance-id ID
  the public set, repositories from a mirror directory; its rows have no environments, which
  producers.make_environment makes; first see whether all fits together:
    python -m producers.swe_smith --dataset SWE-bench/SWE-smith --repo-base-url /srv/mirrors \\
        --environments environments.json --check
  each known way to cheat the grader must score 0:
    python -m producers.swe_smith --items 2 --agent tamper

"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("SWE-smith")
    group.add_argument(
        "--repo-base-url",
        metavar="URL",
        help="git rows clone <URL>/<repo>.git; may be a local directory (default: the row's own)",
    )
    group.add_argument(
        "--environments",
        type=Path,
        metavar="FILE",
        help="repo -> environment, once for all rows of a repository (JSON, TOML or YAML, see "
        "producers.make_environment); what a row says itself wins",
    )
    group.add_argument(
        "--check",
        action="store_true",
        help="fetch sources, apply patches and build environments on this machine, run no tests "
        "and enqueue nothing; list all faults",
    )
    group.add_argument(
        "--python",
        metavar="X.Y",
        help="set up and grade with this Python instead of the row's own or the worker's",
    )
    group.add_argument(
        "--max-tests",
        type=at_least(1),
        metavar="N",
        help="pass over rows with more tests than N (default: no limit)",
    )


def _prepare(row: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Apply `--environments`, and `--repo-base-url` and `--python`, which win over the row."""
    if arguments.environments is not None:
        row = with_environment(row, read_environments(arguments.environments))
    if arguments.python is not None and (own := own_environment(row)) is not None:
        row = {**row, "environment": {**own, "python": arguments.python}}
    if arguments.repo_base_url is None:
        return row
    row = {**row, "repo_base_url": absolute_base_url(arguments.repo_base_url)}
    source = row.get("source")
    if isinstance(source, Mapping) and source.get("repo_base_url"):
        row["source"] = {**source, "repo_base_url": row["repo_base_url"]}
    return row


def absolute_base_url(base_url: str) -> str:
    """Workers run in another directory, so a local directory has to be absolute."""
    path = Path(base_url).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if path.is_absolute() or base_url.startswith((".", "~")):
        raise ConfigurationError(f"--repo-base-url: there is no directory {base_url}")
    return base_url


def _skip_reason(row: dict[str, Any], arguments: argparse.Namespace) -> str | None:
    from envs.swe.item import skip_reason

    reason = skip_reason(row)
    if reason is None and arguments.max_tests is not None:
        tests = _count(row.get("FAIL_TO_PASS")) + _count(row.get("PASS_TO_PASS"))
        if tests > arguments.max_tests:
            return f"more than {arguments.max_tests} tests (--max-tests)"
    return reason


def _check(items: Sequence[SelectedItem], arguments: argparse.Namespace) -> int | None:
    if not arguments.check:
        return None
    from producers.check_rows import check_rows

    return check_rows(items, arguments)


def _count(test_ids: object) -> int:
    """Number of test ids, given as a list or as JSON; 0 for what validation will refuse."""
    if isinstance(test_ids, str):
        try:
            test_ids = json.loads(test_ids)
        except ValueError:
            return 0
    return len(test_ids) if isinstance(test_ids, list | tuple) else 0


PRODUCER = Producer(
    name="swe_smith",
    env="swe_smith",
    description="Repositories with a bug and the tests that show it, as trajectory jobs.",
    prepare=_prepare,
    skip_reason=_skip_reason,
    check=_check,
    add_flags=_add_flags,
    examples=_EXAMPLES,
)

if __name__ == "__main__":
    sys.exit(main(PRODUCER))
