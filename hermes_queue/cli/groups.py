"""`hermes-queue groups ...`: consumer groups of the results."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import asdict

import click

from hermes_queue.cli.sinks.options import place
from hermes_queue.cli.watch.table import age, print_table
from hermes_queue.ledger import Ledger
from hermes_queue.results.consumers import consumer_groups, forget_consumer_group
from hermes_queue.results.consumers import rewind as set_back
from hermes_queue.terminal.output import echo

_HELP = """List the consumer groups of the results; rewind and remove them.

\b
hermes-queue groups list
hermes-queue groups rewind trainer --to 0
hermes-queue groups remove old-trainer
"""
groups = click.Group("groups", help=_HELP)


@groups.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_groups(as_json: bool) -> None:
    """Print each consumer group: its lag, and whether results are kept for it."""
    with closing(Ledger.connect()) as ledger:
        found = consumer_groups(ledger)
    if as_json:
        for group in found:
            echo(json.dumps(asdict(group)))
        return
    rows = [["GROUP", "DURABLE", "CONSUMERS", "PENDING", "BEHIND", "IDLE"]]
    for group in found:
        counts = (str(n) for n in (group.consumers, group.pending, group.behind))
        idle = "-" if group.idle_s is None else age(group.idle_s)
        rows.append([group.name, "yes" if group.durable else "no", *counts, idle])
    print_table(rows)


@groups.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Remove without asking.")
def remove(name: str, yes: bool) -> None:
    """Remove the consumer group NAME: unread results are no longer kept for it."""
    if not yes:
        click.confirm(f"remove consumer group {name}?", abort=True)
    with closing(Ledger.connect()) as ledger:
        forget_consumer_group(ledger, name)
    echo(f"{name}: removed")


@groups.command()
@click.argument("name")
@click.option(
    "--to",
    "start",
    required=True,
    help="Place to read from: 0 = the oldest entry, $ = the end, an entry id (= after it), or "
    "Unix seconds with a point (1790000000.0).",
)
def rewind(name: str, start: str) -> None:
    """Make the consumer group NAME read again from a place in the stream, or skip to one.

    Trimmed results are no longer in the stream; `hermes-queue export` still has them.
    """
    asyncio.run(set_back(name, place(start)))
    echo(f"{name}: continues from {start}")
