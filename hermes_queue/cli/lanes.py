"""`hermes-queue lanes ...`: circuit breakers, and pausing by hand."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict

import click

from hermes_queue.ledger import Breakers, Ledger
from hermes_queue.ledger.fleet.lanes import LaneState, pause_lane
from hermes_queue.terminal.output import echo
from hermes_queue.wire.names import check_served_lane

_HELP = """Show which lanes are paused, by a breaker or by hand; pause and resume them.

\b
hermes-queue lanes show train eval
hermes-queue lanes pause train --reason "new image"
hermes-queue lanes resume train
"""
lanes = click.Group("lanes", help=_HELP)


@lanes.command()
@click.argument("names", nargs=-1, required=True, metavar="LANE...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def show(names: tuple[str, ...], as_json: bool) -> None:
    """Print the state of each LANE: closed (working), open (paused) or half_open (probing).

    A line more for each model endpoint whose jobs wait.
    """
    with closing(Ledger.connect()) as ledger:
        for name in names:
            breakers = Breakers(ledger)
            for state in (breakers.state(name), *breakers.open_endpoints(name)):
                echo(json.dumps(asdict(state)) if as_json else f"{name}: {_told(state)}")


def _told(state: LaneState) -> str:
    if state.state == "closed":
        return "working"
    held = f"jobs that call {state.endpoint} wait" if state.endpoint else "paused"
    return f"{held} ({state.cause}): {state.message}"


@lanes.command()
@click.argument("name", metavar="LANE")
@click.option("--reason", default="", help="Reason that show, status and top display.")
def pause(name: str, reason: str) -> None:
    """Start no more jobs of LANE on any worker; running trajectories continue."""
    try:
        check_served_lane(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with closing(Ledger.connect()) as ledger:
        pause_lane(ledger, name, reason)
    echo(f"{name}: paused; to resume: hermes-queue lanes resume {name}")


@lanes.command()
@click.argument("name", metavar="LANE")
def resume(name: str) -> None:
    """Close the breakers of LANE and its endpoints: its jobs run again within half a minute."""
    with closing(Ledger.connect()) as ledger:
        closed = Breakers(ledger).close(name)
    if not closed:
        raise click.ClickException(f"lane {name!r} is not paused")
    echo(f"{name}: resumed")
