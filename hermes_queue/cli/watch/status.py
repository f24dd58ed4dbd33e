"""`hermes-queue status` and `hermes-queue top`: the deployment on one screen."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict

import click
from rich.console import Console
from rich.live import Live

from hermes_queue.cli.overview import Overview, overview
from hermes_queue.cli.watch.screen import frame
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import Ledger

_TIMEOUT_S = 3.0
"""Shorter than usual: an operator should not wait for Redis longer, and `top` tries again."""


def _connect() -> Ledger:
    return Ledger.connect(timeout_s=_TIMEOUT_S)


@click.command()
@click.argument("run_id", required=False, metavar="[RUN]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def status(run_id: str | None, as_json: bool) -> None:
    """Show the deployment on one screen, or print the counters of RUN as JSON."""
    with closing(_connect()) as ledger:
        if run_id is not None:
            counters = ledger.run_status(run_id)
            if not counters.total:
                raise click.ClickException(f"run {run_id!r} is unknown in this Redis")
            click.echo(json.dumps(asdict(counters)))
            return
        seen = overview(ledger)
    if as_json:
        click.echo(json.dumps({**asdict(seen), "oldest": seen.oldest}))
        return
    Console(highlight=False).print(frame(seen))


@click.command()
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two frames.",
)
def top(once: bool, interval: float) -> None:
    """Watch runs, lanes, workers, failures and the slowest trajectories; q or Ctrl-C ends it."""
    console = Console(highlight=False)
    with closing(_connect()) as ledger:
        seen = overview(ledger)
        if once:
            console.print(frame(seen, height=console.height - 1))
            return
        _watch(ledger, console, seen, interval)


def _watch(ledger: Ledger, console: Console, seen: Overview, interval_s: float) -> None:
    """Draw until the user quits; while Redis is away, show the last frame and the problem."""
    away_since: float | None = None
    problem = ""
    with _keys() as key_pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                note = ""
                if away_since is not None:
                    note = f"NO REDIS for {time.monotonic() - away_since:.0f} s: {problem}"
                live.update(frame(seen, height=console.height, note=note), refresh=True)
                if key_pressed(interval_s) in ("q", "Q", "\x03"):
                    return
                try:
                    seen, away_since = overview(ledger), None
                except HermesQueueError as error:
                    away_since = away_since or time.monotonic()
                    problem = str(error)
        except KeyboardInterrupt:
            return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for some seconds and returns the key pressed, or ""."""
    if not sys.stdin.isatty():

        def waited(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield waited
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 1).decode(errors="replace") if ready else ""

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
