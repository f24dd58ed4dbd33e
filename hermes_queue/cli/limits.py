"""`hermes-queue limits ...`: the call limits of model endpoints."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict

import click

from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.flights import engine_names, engine_state
from hermes_queue.ledger.fleet.limiter import EndpointLimits

_HELP = """Show the call limits of model endpoints, and how many calls wait.

\b
hermes-queue limits list
hermes-queue limits engines
hermes-queue limits forget "http://127.0.0.1:8000/v1|MODEL"
"""
limits = click.Group("limits", help=_HELP)


@limits.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_limits(as_json: bool) -> None:
    """Print each endpoint and model that was called recently."""
    with closing(Ledger.connect()) as ledger:
        known = EndpointLimits(ledger)
        found = {name: state for name in known.names() if (state := known.state(name))}
    for name, state in found.items():
        if as_json:
            click.echo(json.dumps({"name": name, **asdict(state)}))
            continue
        paused = f", paused for {state.pause_s:.0f} s" if state.pause_s else ""
        click.echo(
            f"{name}: {state.leased} calls of {state.limit:.0f}, {state.waiting} waiting{paused}; "
            f"{state.granted} so far, {state.refused} refused, {state.hold_s:.1f} s each"
        )
    if not found and not as_json:
        click.echo("no model endpoint was called recently")


@limits.command("engines")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_engines(as_json: bool) -> None:
    """Print the trajectories in flight at each engine whose metrics are read."""
    with closing(Ledger.connect()) as ledger:
        found = {
            name: state for name in engine_names(ledger) if (state := engine_state(ledger, name))
        }
    for name, state in found.items():
        if as_json:
            click.echo(json.dumps({"name": name, **asdict(state)}))
            continue
        of_cache = "its cache is not known"
        if state.kv_tokens is not None and state.level is not None:
            of_cache = f"{100 * state.level:.0f} % of a cache of {state.kv_tokens:,} may be used"
        click.echo(
            f"{name}: {state.flying} trajectories in flight with {state.tokens:,} tokens, "
            f"{state.waiting} waiting; {of_cache}"
        )
    if not found and not as_json:
        click.echo("no engine with metrics was called recently")


@limits.command()
@click.argument("name", metavar="NAME")
def forget(name: str) -> None:
    """End the pause of NAME and reset its limit, e.g. after the provider has raised it."""
    with closing(Ledger.connect()) as ledger:
        known = EndpointLimits(ledger).forget(name)
    if not known:
        raise click.ClickException(f"no limit {name!r}; see `hermes-queue limits list`")
    click.echo(f"{name}: forgotten")
