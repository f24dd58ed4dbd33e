"""`hermes-queue sandboxes check`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter

import click

from hermes_plugins.selfcheck.bench import Check, CheckResult, Subject, outcomes
from hermes_plugins.selfcheck.checks import CHECKS
from hermes_queue.cli.watch.finite import FiniteRange
from hermes_queue.cli.watch.table import print_table
from hermes_queue.sandbox import make_backend
from hermes_queue.terminal.output import echo


@click.command()
@click.argument("backend", metavar="BACKEND")
@click.option(
    "--memory-mb", type=click.IntRange(min=1), help="What a slot may use; unset: not checked."
)
@click.option("--image", metavar="NAME", help="Image of the slots; unset: the backend's own files.")
@click.option("--only", metavar="TEXT", default="", help="Checks whose name has this text.")
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(min=1),
    default=300.0,
    show_default=True,
    help="Seconds for one check.",
)
def check(
    backend: str, memory_mb: int | None, image: str | None, only: str, timeout_s: float
) -> None:
    """Check that a backend keeps its contract: a short name, or package.module:Class.

    The backend has the settings of the environment, makes sandboxes of its own and ends them.
    The exit code is 1 if a check fails.
    """
    if (here := os.getcwd()) not in sys.path:  # as `python -m` has it
        sys.path.insert(0, here)
    wanted = re.sub(r"[-\s]", "_", only)
    checks = [each for each in CHECKS if wanted in each.name]
    if not checks:
        names = "".join(f"\n  {each.name}" for each in CHECKS)
        raise click.UsageError(f"--only: no check has {only!r} in its name; there are{names}")
    found = asyncio.run(_try(checks, Subject(backend, memory_mb, image), timeout_s))
    print_table(
        [
            ["RESULT", "TIME", "CHECK"],
            *([each.verdict, f"{each.duration_s:.1f} s", each.check.title] for each in found),
        ]
    )
    for why, count in Counter(each.why for each in found if each.verdict == "skipped").items():
        echo(f"\nskipped {count}: {why}")
    for each in found:
        if each.verdict == "failed":
            echo(f"\n{each.check.title}: {each.why}\n        -> {each.check.demand}")
    counts = Counter(each.verdict for each in found)
    numbers = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    echo(f"\n{backend}: {numbers}")
    if counts["failed"]:
        raise SystemExit(1)


async def _try(checks: list[Check], subject: Subject, timeout_s: float) -> list[CheckResult]:
    """Run the checks and return their results; report progress on stderr."""
    make_backend(subject.name, slots=1)  # else every check would report what its constructor raises
    found = []
    async for outcome in outcomes(checks, subject, timeout_s=timeout_s):
        found.append(outcome)
        progress = f"{len(found)}/{len(checks)} {outcome.check.title}: {outcome.verdict}"
        echo(progress, err=True)
    return found
