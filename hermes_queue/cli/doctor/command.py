"""`hermes-queue doctor`: checks everything and says how to fix what fails."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

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
    from hermes_queue.cli.doctor import diagnose

    failed = False
    for finding in diagnose(model=model, base_url=base_url, token_ids=token_ids):
        failed |= finding.level == "error"
        if as_json:
            click.echo(json.dumps(asdict(finding)))
            continue
        word = click.style(f"{finding.level:<7}", fg=_COLOURS[finding.level])
        click.echo(f"{word} {finding.check}: {finding.message}")
        if finding.remedy:
            click.echo(f"        -> {finding.remedy}")
    context.exit(1 if failed else 0)
