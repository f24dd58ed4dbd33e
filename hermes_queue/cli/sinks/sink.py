"""`hermes-queue sink ...`: sends finished groups to where they are used."""

from __future__ import annotations

import click

from hermes_queue import extensions
from hermes_queue.cli.sinks import dataset
from hermes_queue.cli.sinks.atropos import atropos
from hermes_queue.errors import ConfigurationError

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


sink.add_command(atropos)
