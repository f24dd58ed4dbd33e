"""`hermes-queue sink ...`: send finished groups to where they are used."""

from __future__ import annotations

import click

from hermes_queue.commands.sink_atropos import atropos


@click.group()
def sink() -> None:
    r"""Send finished groups to where they are used, until SIGTERM.

    \b
    hermes-queue sink atropos --url http://127.0.0.1:8000
    """


sink.add_command(atropos)
