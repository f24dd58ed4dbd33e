"""`hermes-queue status` and `hermes-queue top`: the deployment on one screen.

While it is drawn, keys of the terminal are read by name.
"""

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
from rich.console import Console  # noqa: TID251 - the type
from rich.live import Live

from hermes_queue.cli.overview import Overview, overview
from hermes_queue.cli.watch.finite import FiniteRange
from hermes_queue.cli.watch.running import all_running
from hermes_queue.cli.watch.screen import frame
from hermes_queue.cli.watch.scrolling import TRAJECTORIES, Scrolling
from hermes_queue.cli.watch.table import print_table
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.answers import MAIN_COUNTERS
from hermes_queue.terminal.output import console, echo

_TIMEOUT_S = 3.0
"""Shorter than usual: an operator should not wait for Redis longer, and `top` tries again."""

_QUIT = frozenset({"q", "Q", "\x03", "gone"})
_SEQUENCES = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b[Z": "back",
    "\t": "next",
    "k": "up",
    "j": "down",
    "b": "page up",
    " ": "page down",
    "g": "home",
    "G": "end",
}
_LONGEST = 8
"""Characters of a sequence."""


def _connect() -> Ledger:
    return Ledger.connect(timeout_s=_TIMEOUT_S)


@click.command()
@click.argument("run_id", required=False, metavar="[RUN]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def status(run_id: str | None, as_json: bool) -> None:
    """Show the deployment on one screen, or the counters of RUN.

    Of a RUN, counters of what happens seldom are left out while they are 0.
    """
    with closing(_connect()) as ledger:
        if run_id is not None:
            counters = ledger.run_status(run_id)
            if not counters.total:
                raise ConfigurationError(f"run {run_id!r} is unknown in this Redis")
            counts = asdict(counters)
            if as_json:
                echo(json.dumps(counts))
            else:
                shown = [[k, str(n)] for k, n in counts.items() if n or k in MAIN_COUNTERS]
                print_table(shown)
            return
        seen = overview(ledger)
    if as_json:
        echo(json.dumps({**asdict(seen), "oldest": seen.oldest}))
        return
    console(highlight=False).print(frame(seen))


@click.command()
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--interval",
    type=FiniteRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two frames.",
)
def top(once: bool, interval: float) -> None:
    """Watch runs, lanes, workers, failures and trajectories; q or Ctrl-C ends it.

    Tab chooses a table, which then takes most of the screen. Arrows, Page Up, Page Down, Home and
    End scroll it; their order stays. The table of trajectories then shows all that run.
    """
    screen = console(highlight=False)
    with closing(_connect()) as ledger:
        seen = overview(ledger)
        if once:
            screen.print(frame(seen, height=screen.height - 1))
            return
        _watch(ledger, screen, seen, interval)


def _watch(ledger: Ledger, console: Console, seen: Overview, interval_s: float) -> None:
    """Draw until the user quits; while Redis is away, show the last frame and the problem."""
    away_since: float | None = None
    problem = ""
    scrolling, running = Scrolling(), None
    with _keys_pressed() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + interval_s
        try:
            while True:
                note = ""
                if away_since is not None:
                    note = f"NO REDIS for {time.monotonic() - away_since:.0f} s: {problem}"
                shown = frame(
                    seen, height=console.height, note=note, scrolling=scrolling, running=running
                )
                live.update(shown, refresh=True)
                keys = pressed(max(0.0, due - time.monotonic()))
                if not _QUIT.isdisjoint(keys):
                    return
                before = scrolling.table
                for key in keys:
                    scrolling.press(key)
                # A key redraws what is known, unless it asks for what is not.
                wants_all = scrolling.table == TRAJECTORIES and before != TRAJECTORIES
                if keys and not wants_all and time.monotonic() < due:
                    continue
                due = time.monotonic() + interval_s
                try:
                    seen, away_since = overview(ledger), None
                    running = None
                    if scrolling.table == TRAJECTORIES:
                        running = all_running(ledger, seen.workers, seen.at)
                except HermesQueueError as error:
                    away_since = away_since or time.monotonic()
                    problem = str(error)
        except KeyboardInterrupt:
            return


def named(text: str) -> list[str]:
    """The keys in what a terminal sent; unknown sequences are left out."""
    keys: list[str] = []
    while text:
        if text[0] != "\x1b":
            keys.append(_SEQUENCES.get(text[0], text[0]))
            text = text[1:]
            continue
        length = next((n for n in range(3, _LONGEST) if text[:n] in _SEQUENCES), None)
        if length is None:
            text = text[1:].lstrip("[O0123456789;~")
            continue
        keys.append(_SEQUENCES[text[:length]])
        text = text[length:]
    return keys


@contextmanager
def _keys_pressed() -> Iterator[Callable[[float], list[str]]]:
    """Yield a function that waits for at most some seconds and returns the keys pressed by then.

    A terminal that is gone has pressed "gone".
    """
    if not sys.stdin.isatty():

        def waited(seconds: float) -> list[str]:
            time.sleep(seconds)
            return []

        yield waited
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> list[str]:
        ready, _, _ = select.select([terminal], [], [], seconds)
        if not ready:
            return []
        try:
            data = os.read(terminal, 256)
        except OSError:
            data = b""
        return named(data.decode(errors="replace")) if data else ["gone"]

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
