"""`hermes-queue sink ...`: sends finished groups to where they are used.

`hermes-queue sink atropos` sends them to an Atropos trainer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from typing import Any

import click

from hermes_queue import extensions
from hermes_queue.cli.sinks import dataset
from hermes_queue.cli.sinks.options import flags_of, place, validated
from hermes_queue.errors import ConfigurationError
from hermes_queue.sinks.atropos.options import AtroposCounts, AtroposOptions
from hermes_queue.terminal.output import echo

_HELP = """Send results from the stream to a destination as they arrive, until stopped.

Each sink is a separate consumer group: it receives every group, keeps its own position, and neither
waits for other sinks nor delays them. It can be killed at any moment: started again, it continues
where it stopped, and a group that is delivered twice is written once.

\b
hermes-queue sink parquet --out data/run1 --run run1 --until-done
hermes-queue sink sharegpt --out sft.jsonl --min-score 1 --clean --max-per-instance 2
hermes-queue sink sharegpt --out clean.jsonl --clean --exclude swe-bench-verified.txt
hermes-queue sink atropos --url http://127.0.0.1:8000

\b
exit codes: 0 ended as requested (SIGTERM, --until-done, --idle-timeout)
  1 the destination failed; groups that it did not store are delivered again
  2 wrong flag, setting or destination | 4 Redis | 130 Ctrl-C
"""


class _Sinks(click.Group):
    """The command for Atropos, and one command for each format, including those of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *extensions.known("sink")})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found or not (":" in cmd_name or cmd_name in extensions.known("sink")):
            return found
        try:
            return dataset.command(cmd_name)
        except ConfigurationError as error:  # one broken format must not break the list of commands
            return _broken(cmd_name, error)


def _broken(name: str, error: ConfigurationError) -> click.Command:
    def fail(**_: object) -> None:
        raise error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=fail, help=str(error), context_settings=anything)


@click.group(help=_HELP, cls=_Sinks)
def sink() -> None:
    """Long-running consumers, with one command per destination."""


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
sink.add_command(atropos)
