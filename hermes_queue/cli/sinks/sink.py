"""`hermes-queue sink ...`: send finished groups to where they are used."""

from __future__ import annotations

import click

from hermes_queue.cli.sinks import dataset as sink_dataset
from hermes_queue.cli.sinks.atropos import atropos

_HELP = """Take results out of the stream as they come, until told to stop.

Each sink is a consumer group of its own: it sees every group, has a cursor of its own, and neither
waits for the others nor holds them up. Killed at any moment and started again, it goes on where it
was; what is delivered twice is written once.

\b
hermes-queue sink parquet --out data/run1 --run run1 --until-done
hermes-queue sink sharegpt --out sft.jsonl --min-score 1 --clean --max-per-instance 2
hermes-queue sink hf --out my-dataset --licence mit --exclude swe-bench-verified.txt
hermes-queue sink atropos --url http://127.0.0.1:8000

\b
exit codes: 0 ended as asked (SIGTERM, --until-done, --idle-timeout)
  1 the destination failed; what it has not stored is delivered again
  2 wrong flag, setting or destination | 4 Redis | 130 Ctrl-C
"""


@click.group(help=_HELP)
def sink() -> None:
    """Long-running consumers; each destination is one command."""


for _command in (*sink_dataset.COMMANDS, atropos):
    sink.add_command(_command)
