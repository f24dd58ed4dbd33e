"""`hermes-queue doctor`: checks everything and says how to fix what fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path

import click

from hermes_queue.cli.doctor import Finding, error, ok, warning
from hermes_queue.cli.doctor.deployment import deployment_findings
from hermes_queue.cli.doctor.endpoint import endpoint_findings, price_findings
from hermes_queue.cli.doctor.host import (
    descriptor_finding,
    host_findings,
    shared_disk_findings,
    store_findings,
)
from hermes_queue.cli.doctor.redis_server import redis_findings
from hermes_queue.errors import ConfigurationError
from hermes_queue.installation import check_installation, shadows
from hermes_queue.settings import check_environment, sections
from hermes_queue.terminal.output import echo

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@click.option(
    "--base-url", metavar="URL", help="URL of the model endpoint. Default: the configured one."
)
@click.option(
    "--model", metavar="NAME", help="Model to query. Default: the first that the endpoint lists."
)
@click.option(
    "--token-ids",
    is_flag=True,
    help="Require token ids and logprobs from the endpoint, as RL does.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.pass_context
def doctor(
    context: click.Context, base_url: str | None, model: str | None, token_ids: bool, as_json: bool
) -> None:
    """Check settings, Redis, workers, isolation, disks and model endpoint; print remedies.

    The exit code is 1 if any check finds an error.
    """
    failed = False
    for finding in _findings(model, base_url, token_ids):
        failed |= finding.level == "error"
        if as_json:
            echo(json.dumps(asdict(finding)))
            continue
        word = click.style(f"{finding.level:<7}", fg=_COLOURS[finding.level])
        echo(f" {finding.check}: {finding.message}", head=word)
        if finding.remedy:
            echo(f"        -> {finding.remedy}")
    context.exit(1 if failed else 0)


def _findings(model: str | None, base_url: str | None, token_ids: bool) -> Iterator[Finding]:
    """Each finding as soon as it is made; stops at wrong settings, which all checks depend on."""
    try:
        check_environment()
    except ConfigurationError as problem:
        yield error("settings", str(problem))
        return
    yield ok("settings", f"{len(sections())} sections")
    try:
        check_installation()
        yield ok("installation", "no other distribution has packages of the same names")
    except ConfigurationError as problem:
        yield error("installation", str(problem))
    for path in shadows(Path.cwd()):
        yield warning(
            "installation.shadows",
            f"{path} hides ours from `python -m` and scripts in this directory",
            "run `python -P -m producers.NAME`, or in another directory; hermes-queue and celery "
            "-A hermes_queue are not affected",
        )
    ledger = yield from redis_findings()
    with closing(ledger) if ledger else nullcontext():
        if ledger:
            yield from deployment_findings(ledger)
        yield from shared_disk_findings(ledger)
    yield from host_findings()
    yield descriptor_finding()
    yield from store_findings()
    yield from price_findings()
    yield from endpoint_findings(model=model, base_url=base_url, token_ids=token_ids)
