"""`hermes-queue sink atropos`: sends finished groups to an Atropos trainer."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from typing import Any

import click

from hermes_queue.cli.sinks.options import flags_of, place, validated
from hermes_queue.sinks.atropos.options import AtroposCounts, AtroposOptions
from hermes_queue.terminal.output import echo


def _atropos(**flags: Any) -> None:
    """Send finished groups to an Atropos trainer (docs/atropos.md).

    Ends on SIGTERM or SIGINT and prints, as JSON, how many groups were sent, acknowledged,
    refused and dropped.
    """
    from hermes_queue.settings import check_environment

    if flags["start"]:
        flags["start"] = place(flags["start"])
    options = validated(AtroposOptions, flags)
    check_environment()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    counts = asyncio.run(_serve(options))
    echo(json.dumps(counts.summary()))


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


atropos = click.command("atropos")(_atropos)
atropos.params += flags_of(AtroposOptions, but=("redis_url", "poll_s"))
