"""`make localmodal`: the Modal-compatible server in the foreground."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import click

from hermes_queue.errors import ConfigurationError
from hermes_queue.terminal.output import echo
from localmodal.server import LocalModal
from localmodal.storage.store import SandboxLimits


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; 0 = any."
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the sandboxes' files while they live. Default: a directory of the cache.",
)
@click.option(
    "--token-id", default="ak-local", show_default=True, help="Token id that clients must send."
)
@click.option("--token-secret", default="as-local", show_default=True, help="Secret of the token.")
@click.option("--network/--no-network", default=True, help="Whether sandboxes may have network.")
@click.option(
    "--capabilities",
    type=click.Choice(["wide", "docker"]),
    default="wide",
    show_default=True,
    help="Capabilities of root in sandboxes: Docker's, or in addition ptrace and higher limits.",
)
@click.option(
    "--runtime",
    type=click.Choice(["namespaces", "gvisor"]),
    default="namespaces",
    show_default=True,
    help="Isolation of sandboxes; gVisor needs runsc and root.",
)
@click.option(
    "--real-images",
    is_flag=True,
    help="Build and fetch every image, and not only those of slots that have one.",
)
@click.option(
    "--worker-ports", is_flag=True, help="Give each sandbox a separate port for its commands."
)
def localmodal(capabilities: str, runtime: str, **options: Any) -> None:
    """Serve the Modal protocol on 127.0.0.1 until interrupted; its sandboxes are local.

    Prints the variables that point the modal SDK at it, as `export` lines.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    limits = SandboxLimits(capabilities=capabilities, runtime=runtime)
    asyncio.run(_serve(LocalModal(limits=limits, **options)))


async def _serve(server: LocalModal) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        await server.start()
    except OSError as error:
        raise ConfigurationError(f"cannot listen on 127.0.0.1:{server.port}: {error}") from error
    try:
        for name, value in server.environment.items():
            echo(f"export {name}={value}")
        await stopped.wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    try:
        localmodal(prog_name="python -m localmodal")
    except ConfigurationError as problem:
        echo(f"error: {problem}", err=True)
        sys.exit(problem.exit_code)
