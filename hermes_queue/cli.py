"""`hermes-queue ...`: look at a deployment. Also `celery -A hermes_queue hermes ...`."""

from __future__ import annotations

import asyncio
import json

import click

from hermes_queue.commands.dead import dead
from hermes_queue.commands.export import export
from hermes_queue.commands.groups import groups
from hermes_queue.commands.lanes import lanes
from hermes_queue.commands.limits import limits
from hermes_queue.commands.localmodal import localmodal
from hermes_queue.commands.run import run
from hermes_queue.commands.sandboxes import sandboxes
from hermes_queue.commands.sink import sink
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


@cli.command()
def check() -> None:
    """Check settings, isolation and Redis of this machine, each with the fix if it fails."""
    from hermes_queue.embedded import find_redis_server
    from hermes_queue.installation import check_installation
    from hermes_queue.ledger import Ledger
    from hermes_queue.sandbox import make_backend
    from hermes_queue.settings import RedisSettings, SandboxSettings, check_environment

    check_environment()
    click.echo("settings: ok")
    check_installation()
    click.echo("installation: ok")
    backend = make_backend(SandboxSettings().backend)

    async def probe() -> None:
        await backend.start()
        await backend.stop()

    asyncio.run(probe())
    click.echo(f"sandbox backend {SandboxSettings().backend}: ok")
    _check_store()
    if RedisSettings().url is None:
        click.echo(f"redis: not configured; producers start {find_redis_server()} themselves")
        return
    ledger = Ledger.connect()
    click.echo(f"redis: ok, {len(ledger.workers())} workers live")
    ledger.close()


def _check_store() -> None:
    from hermes_queue.object_store import ObjectStore
    from hermes_queue.settings import RedisSettings, StoreSettings

    url = RedisSettings().url
    redis_url = url.get_secret_value() if url else "unix:"  # embedded: all is on this host
    if store := ObjectStore.from_settings(StoreSettings(), redis_url):
        store.probe()
        click.echo(f"object store {store.url}: ok")


@cli.command()
@click.argument("run_id")
def status(run_id: str) -> None:
    """Print the counters of RUN_ID as JSON."""
    from dataclasses import asdict

    from hermes_queue.ledger import Ledger

    ledger = Ledger.connect()
    try:
        counters = ledger.run_status(run_id)
    finally:
        ledger.close()
    if not counters.total:
        raise click.ClickException(f"run {run_id!r} is unknown in this Redis")
    click.echo(json.dumps(asdict(counters)))


@cli.command()
def workers() -> None:
    """Print one JSON line per live worker."""
    from hermes_queue.ledger import Ledger

    ledger = Ledger.connect()
    try:
        for worker in ledger.workers():
            click.echo(json.dumps(worker))
    finally:
        ledger.close()


cli.add_command(dead)
cli.add_command(export)
cli.add_command(groups)
cli.add_command(lanes)
cli.add_command(localmodal)
cli.add_command(limits)
cli.add_command(run)
cli.add_command(sandboxes)
cli.add_command(sink)


def main() -> None:
    """Entry point of the `hermes-queue` script."""
    cli(prog_name="hermes-queue")
