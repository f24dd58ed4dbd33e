"""`hermes-queue sink atropos`: sends finished groups to an Atropos trainer."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from typing import TYPE_CHECKING, Any

import click

from hermes_queue.cli.sinks.places import place

if TYPE_CHECKING:
    from hermes_queue.sinks.atropos.options import AtroposCounts, AtroposOptions

_POSITIVE = click.FloatRange(min=0, min_open=True)
_NOT_NEGATIVE = click.FloatRange(min=0)


@click.command()
@click.option("--url", required=True, help="URL of the Atropos API server: http://host:port.")
@click.option(
    "--name",
    default="hermes-queue",
    show_default=True,
    help="Name of the environment to register.",
)
@click.option("--group", default="atropos", show_default=True, help="Name of the consumer group.")
@click.option("--run", "run_id", help="Send only groups of this run.")
@click.option("--env", help="Send only groups of this env.")
@click.option(
    "--start",
    default="0",
    show_default=True,
    help="Position at which a new consumer group begins: 0 = oldest, $ = only new groups, an entry "
    "id, or Unix seconds with a point (1790000000.0).",
)
@click.option(
    "--group-size",
    type=click.IntRange(min=1),
    help="Refuse groups of another size. Default: the size of the first group.",
)
@click.option(
    "--sequences",
    type=click.Choice(["longest", "all"]),
    default="longest",
    show_default=True,
    help="Token sequences to send of a trajectory that has several.",
)
@click.option(
    "--on-missing",
    type=click.Choice(["drop", "wait"]),
    default="drop",
    show_default=True,
    help="Drop a group with members that were not measured, or wait for replacements.",
)
@click.option(
    "--missing-wait",
    "missing_wait_s",
    type=_POSITIVE,
    default=3600.0,
    show_default=True,
    help="With --on-missing wait: drop the group after this many seconds.",
)
@click.option("--messages", is_flag=True, help="Also send the messages of the conversation.")
@click.option(
    "--settle",
    "settle_s",
    type=_NOT_NEGATIVE,
    default=2.0,
    show_default=True,
    help="A batch counts as received if the server is alive this many seconds later.",
)
@click.option(
    "--max-batches-queued",
    type=_POSITIVE,
    default=3.0,
    show_default=True,
    help="Pause while at least this many batches of all environments are queued.",
)
@click.option(
    "--register-timeout",
    "register_timeout_s",
    type=_POSITIVE,
    help="Give up if no trainer registers within this many seconds. Default: never.",
)
@click.option(
    "--idle-timeout",
    "idle_timeout_s",
    type=_POSITIVE,
    help="End after this many seconds without activity. Default: never.",
)
def atropos(**flags: Any) -> None:
    """Send finished groups to an Atropos trainer (docs/atropos.md).

    Ends on SIGTERM or SIGINT and prints, as JSON, how many groups were sent, acknowledged,
    refused and dropped.
    """
    from hermes_queue.settings import check_environment
    from hermes_queue.sinks.atropos.options import AtroposOptions

    flags["start"] = place(flags["start"])
    check_environment()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    counts = asyncio.run(_serve(AtroposOptions(**flags)))
    click.echo(json.dumps(counts.summary()))


async def _serve(options: AtroposOptions) -> AtroposCounts:
    from hermes_queue.sinks.atropos.sink import AtroposSink
    from hermes_queue.sinks.metering import metered

    with metered("atropos") as meter:
        sink = AtroposSink(options, meter)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, sink.stop)
        try:
            return await sink.run()
        except asyncio.CancelledError:  # stopped while it waited for the previous sink to end
            return sink.counts
