"""`hermes-queue ...`: look at a deployment. Also `celery -A hermes_queue hermes ...`."""

from __future__ import annotations

import click

from hermes_queue.cli.dead import dead
from hermes_queue.cli.diagnose import doctor
from hermes_queue.cli.exporter import exporter
from hermes_queue.cli.groups import groups
from hermes_queue.cli.lanes import lanes
from hermes_queue.cli.limits import limits
from hermes_queue.cli.localmodal import localmodal
from hermes_queue.cli.rescore import rescore
from hermes_queue.cli.run import run
from hermes_queue.cli.sandboxes import sandboxes
from hermes_queue.cli.sinks.export import export
from hermes_queue.cli.sinks.sink import sink
from hermes_queue.cli.watch.status import status, top
from hermes_queue.cli.workers import workers
from hermes_queue.errors import EXIT_ISOLATION, HermesQueueError, IsolationUnavailable


class _Commands(click.Group):
    """A group whose commands end our errors as one line and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except IsolationUnavailable as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(EXIT_ISOLATION)
        except HermesQueueError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(name="hermes", cls=_Commands)
def cli() -> None:
    """Look at a hermes-queue deployment (HERMES_QUEUE_REDIS_URL names its Redis)."""


cli.add_command(dead)
cli.add_command(export)
cli.add_command(doctor)
cli.add_command(exporter)
cli.add_command(groups)
cli.add_command(lanes)
cli.add_command(localmodal)
cli.add_command(limits)
cli.add_command(rescore)
cli.add_command(run)
cli.add_command(sandboxes)
cli.add_command(sink)
cli.add_command(status)
cli.add_command(top)
cli.add_command(workers)


def main() -> None:
    """Entry point of the `hermes-queue` script."""
    cli(prog_name="hermes-queue")


if __name__ == "__main__":
    main()
