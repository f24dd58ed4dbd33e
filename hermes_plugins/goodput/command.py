"""`hermes-queue goodput`: what slots and money bring, and where the rest goes."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict

import click

from hermes_plugins.goodput.waterfall import waterfall
from hermes_queue.cli.watch.finite import FiniteRange
from hermes_queue.cli.watch.table import figure, print_table, slot_time
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.accounts.goodput import (
    Goodput,
    goodput_of,
    goodput_of_fleet,
    goodput_of_run,
)
from hermes_queue.ledger.fleet.tally import Tally
from hermes_queue.terminal.escapes import label
from hermes_queue.terminal.output import echo

_HOURS_MOST = 1.5

_HELP = """Show scored trajectories per slot-hour and per dollar, and where the rest went.

Of RUN; without it of the whole deployment over its life, or of the last --hours. Every second for
which a slot was leased has exactly one account; leases that still run are in none.

\b
hermes-queue goodput
hermes-queue goodput my-run --json
hermes-queue goodput --hours 1
"""


@click.command(help=_HELP)
@click.argument("run_id", required=False, metavar="[RUN]")
@click.option(
    "--hours",
    type=FiniteRange(min=0.05, max=_HOURS_MOST),
    metavar="HOURS",
    help=f"Only the last HOURS of the deployment, at most {_HOURS_MOST:g}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def goodput(run_id: str | None, hours: float | None, as_json: bool) -> None:
    """Show goodput; the help is `_HELP`."""
    if run_id is not None and hours is not None:
        raise click.UsageError("RUN and --hours exclude each other")
    with closing(Ledger.connect()) as ledger:
        if run_id is not None:
            Runs(ledger).get(run_id)
            good = goodput_of_run(ledger, run_id)
        elif hours is not None:
            good = goodput_of(Tally(ledger).lately(3600 * hours, now=time.time()).accounts)
        else:
            good = goodput_of_fleet(ledger)
    if as_json:
        echo(json.dumps(facts_of(good)))
        return
    for line in summary_of(good):
        echo(line)
    rows = [("ACCOUNT", "SLOT-TIME", "SHARE", "WHAT")]
    for loss in waterfall(good):
        rows.append(
            (label(loss.title), slot_time(loss.seconds), f"{100 * loss.share:.1f} %", loss.what)
        )
    if len(rows) > 1:
        print_table(rows)
    if good.lost:
        echo("- came to nothing")


def facts_of(good: Goodput) -> dict[str, object]:
    """Everything, with the derived figures."""
    derived = ("leased_s", "work_s", "usd", "per_slot_hour", "per_usd", "tokens_thrown_away")
    return asdict(good) | {name: getattr(good, name) for name in derived}


def summary_of(good: Goodput) -> list[str]:
    """The figures in a few lines."""
    if good.per_slot_hour is None:
        return ["no lease has ended yet"]
    share = 100 * good.work_s / good.leased_s
    lines = [
        f"{good.scored:.0f} scored in {slot_time(good.leased_s)} of slot-time: "
        f"{figure(good.per_slot_hour)} per slot-hour; {share:.0f} % of the time went into them",
    ]
    if good.per_usd is not None:
        models, slots = sum(good.model_usd.values()), sum(good.slot_usd.values())
        lines.append(
            f"US$ {good.usd:.4f} (models {models:.4f}, slots {slots:.4f}): "
            f"{figure(good.per_usd)} scored per US$"
        )
    if thrown := good.tokens_thrown_away:
        lines.append(f"{thrown:,.0f} of {sum(good.tokens.values()):,.0f} tokens thrown away")
    return lines
