"""`hermes-queue atropos-server`: batches for a trainer that speaks the Atropos API."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path
from typing import Any

import click

from hermes_plugins.atropos_server.options import AtroposServerOptions
from hermes_queue.cli.sinks.options import flags_of, validated
from hermes_queue.terminal.output import echo

_HELP = """Hand out finished groups as batches to a trainer that speaks the Atropos API.

It takes the place of the Atropos API server (docs/plugins/atropos_server.md): the trainer needs no
change, and no batch is lost when the trainer, this server or Redis dies. One server serves one
trainer; it keeps a journal of what is in which batch in --directory, beside the trainer's
checkpoints.

\b
hermes-queue atropos-server --run run1 --group-size 8 --directory checkpoints
hermes-queue atropos-server --run run1 --group-size 8 --directory checkpoints \\
    --ack file --checkpoint 'checkpoints/step_{step}/config.json'
hermes-queue atropos-server --run run1 --group-size 8 --directory checkpoints \\
    --host 10.0.0.5 --token-file token   # trainer: http://trainer:TOKEN@10.0.0.5:8000

A trainer that resumes from a checkpoint registers with its step as starting_step, and gets what
is not in these weights. SIGTERM ends the server and prints its counters as JSON.

\b
exit codes: 0 ended as requested (SIGTERM, SIGINT)
  1 the journal's disk failed, or another process took over
  2 wrong flag, setting, address or journal | 4 Redis at the start
"""


def _server(**flags: Any) -> None:
    from hermes_queue.settings import check_environment

    options = validated(AtroposServerOptions, flags)
    check_environment()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    echo(json.dumps(asyncio.run(_serve(options))))


async def _serve(options: AtroposServerOptions) -> dict[str, Any]:
    from hermes_plugins.atropos_server.server import TrainerServer
    from hermes_queue.sinks.metering import metered

    with metered("atropos_server") as meter:
        server = TrainerServer(options, meter)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        try:
            return await server.run()
        except asyncio.CancelledError:  # stopped while it waited for the previous server to end
            return {}


atropos_server = click.command("atropos-server", help=_HELP)(_server)
atropos_server.params += [
    click.Option(
        ["--directory"],
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory of the journal, beside the trainer's checkpoints.",
    ),
    *flags_of(AtroposServerOptions, but=("directory", "redis_url")),
]
