"""`hermes-queue report`: what a run brought, for people who were not there."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from hermes_plugins.goodput.command import facts_of
from hermes_plugins.goodput.facts import RunReport, report_of
from hermes_plugins.goodput.page import page_of
from hermes_plugins.goodput.text import lines_of
from hermes_queue.disk.locked import replacing
from hermes_queue.ledger import Ledger
from hermes_queue.terminal.escapes import label
from hermes_queue.terminal.output import echo

_HELP = """Report on RUN: throughput, scores, costs, where slot-time went, failures and the slowest.

Of a run that has ended, up to 90 days later, or of one that runs. With --html one file with plots
that opens anywhere: it has no script and asks nothing of any server.

\b
hermes-queue report my-run
hermes-queue report my-run --html my-run.html

\b
exit codes: 0 | 1 the file cannot be written | 2 RUN is unknown | 4 Redis
"""


@click.command(help=_HELP)
@click.argument("run_id", metavar="RUN")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report with its plots to FILE.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(run_id: str, html: Path | None, as_json: bool) -> None:
    """Report on a run; the help is `_HELP`."""
    with closing(Ledger.connect()) as ledger:
        found = report_of(ledger, run_id)
    if html is not None:
        with replacing(html) as draft:
            draft.write_text(page_of(found), "utf-8")
        echo(f"{html}: written")
    if as_json:
        echo(json.dumps(_facts(found)))
    elif html is None:
        for line in lines_of(found):
            echo(label(line))


def _facts(found: RunReport) -> dict[str, object]:
    return asdict(found) | {"good": facts_of(found.good), "causes": found.causes}
