"""`hermes-queue plugins`: extensions by name, with the errors of plugins."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from hermes_queue import extensions
from hermes_queue.cli.watch.table import print_table
from hermes_queue.errors import EXIT_FAILED
from hermes_queue.plugins import KINDS
from hermes_queue.terminal.output import echo

_HELP = """List envs, tools, agents, sinks and other extensions that have a name here.

Imports what installed plugins of others declare, and exits with 1 if one of them cannot be used.
Extensions that are only used as package.module:ATTRIBUTE are not listed (docs/extensions.md).
"""


@click.command(help=_HELP)
@click.argument("kinds", nargs=-1, type=click.Choice(list(KINDS)), metavar="[KIND]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def plugins(kinds: tuple[str, ...], as_json: bool) -> None:
    """Implements the command; its help is `_HELP`."""
    found = [each for each in extensions.listed() if not kinds or each.kind in (*kinds, "plugin")]
    if as_json:
        for each in found:
            echo(json.dumps(asdict(each)))
    else:
        rows = [(each.kind, each.name, each.origin, each.target) for each in found if each.name]
        print_table([("kind", "name", "from", "object"), *rows])
    wrong = [each.error for each in found if each.error]
    for error in wrong:
        echo(f"error: {error}", err=True)
    if wrong:
        raise SystemExit(EXIT_FAILED)
