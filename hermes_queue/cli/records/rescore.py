"""`hermes-queue rescore FILE`: compares recorded logprobs with those that the server computes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from hermes_queue import extensions
from hermes_queue.agent.endpoint.choice import OwnEndpoints
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.agent.tokens.rescore import Difference, incomparable, rescore_at
from hermes_queue.errors import InputError, ModelConfigError, ModelError
from hermes_queue.models import ScoredTrajectory
from hermes_queue.settings import ModelSettings
from hermes_queue.terminal.output import echo

BOUND = 1e-3
"""In nats. The servers in the tests differ by nothing or by float32 rounding."""


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--base-url", help="URL of the endpoint, up to /v1. Default: the record's endpoint.")
@click.option("--model", help="Name of the model. Default: the record's model.")
@click.option(
    "--server",
    "kind",
    metavar="NAME",
    help=f"Kind of server: {', '.join(extensions.own('token_server'))}, a plugin's name, or "
    "package.module:SERVER. Default: the record's server.",
)
@click.option(
    "--bound",
    type=float,
    default=BOUND,
    show_default=True,
    help="Largest accepted difference, in nats.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), help="Check only the first records, at most this many."
)
def rescore(file: Path, bound: float, limit: int | None, **options: Any) -> None:
    """Recompute the logprobs of the records in FILE (JSON lines) at the server.

    Prints their differences from the recorded ones. Exits with 1 if a difference exceeds the
    bound, or if no record could be compared.
    """
    asyncio.run(_rescore(file, bound, limit, **options))


async def _rescore(file: Path, bound: float, limit: int | None, **options: Any) -> None:
    total, compared, skipped, wrong = Difference(), 0, Counter[str](), 0
    key = OwnEndpoints.of(ModelSettings()).key
    try:
        for record in _records(file, limit):
            for violation in token_violations(record):
                wrong += 1
                echo(f"{record.trajectory_id}: {violation}", err=True)
            if reason := incomparable(record):
                skipped[reason] += 1
                continue
            total += await rescore_at(record, api_key=key, **options)
            compared += 1
    except (ModelError, ModelConfigError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        await close_clients()
    _print_differences(total, compared, skipped)
    if wrong or not total.tokens or not total.largest <= bound:
        raise click.exceptions.Exit(1)


def _print_differences(total: Difference, compared: int, skipped: Counter[str]) -> None:
    echo(f"{compared} records, {total.tokens} sampled tokens")
    if total.tokens:
        echo(f"difference: largest {total.largest:.3g}, mean {total.mean:.3g} nats")
    if total.where:
        echo(f"largest at {total.where}")
    for reason, count in Counter(total.retries).items():
        echo(f"{count} answers requested again: {reason}")
    for reason, count in skipped.items():
        echo(f"{count} records not compared: {reason}")


def _records(file: Path, limit: int | None) -> Iterator[ScoredTrajectory]:
    with file.open("rb") as lines:
        for number, line in enumerate(islice(lines, limit), start=1):
            try:
                yield ScoredTrajectory.model_validate_json(line)
            except ValidationError as error:
                raise InputError(f"{file}, line {number}: {error}") from error
