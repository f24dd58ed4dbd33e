"""`hermes-queue limits ...`: the call limits of model endpoints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict

import click

from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.flights import engine_names, engine_state
from hermes_queue.ledger.fleet.limiter import EndpointLimits
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Values
from hermes_queue.telemetry.metrics import Metric
from hermes_queue.terminal.output import echo

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
            echo(json.dumps({"name": name, **asdict(state)}))
            continue
        paused = f", paused for {state.pause_s:.0f} s" if state.pause_s else ""
        echo(
            f"{name}: {state.leased} calls of {state.limit:.0f}, {state.waiting} waiting{paused}; "
            f"{state.granted} so far, {state.refused} refused, {state.hold_s:.1f} s each"
        )
    if not found and not as_json:
        echo("no model endpoint was called recently")


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
            echo(json.dumps({"name": name, **asdict(state)}))
            continue
        of_cache = "its cache is not known"
        if state.kv_tokens is not None and state.level is not None:
            of_cache = f"{100 * state.level:.0f} % of a cache of {state.kv_tokens:,} may be used"
        echo(
            f"{name}: {state.flying} trajectories in flight with {state.tokens:,} tokens, "
            f"{state.waiting} waiting; {of_cache}"
        )
    if not found and not as_json:
        echo("no engine with metrics was called recently")


@limits.command()
@click.argument("name", metavar="NAME")
def forget(name: str) -> None:
    """End the pause of NAME and reset its limit, e.g. after the provider has raised it."""
    with closing(Ledger.connect()) as ledger:
        known = EndpointLimits(ledger).forget(name)
    if not known:
        raise click.ClickException(f"no limit {name!r}; see `hermes-queue limits list`")
    echo(f"{name}: forgotten")


def read_limits(ledger: Ledger, names: Iterable[str]) -> Iterator[tuple[Metric, Values]]:
    """What the exporter says of these limits. Raises RedisUnavailable."""
    known = EndpointLimits(ledger)
    calls: dict[tuple[str, ...], float] = {}
    pauses: dict[tuple[str, ...], float] = {}
    answers: dict[tuple[str, ...], float] = {}
    for name in names:
        state = known.state(name)
        if state is None:
            continue
        endpoint, _, model = name.partition("|")
        pauses[endpoint, model] = state.pause_s
        for label in ("limit", "leased", "waiting"):
            calls[endpoint, model, label] = getattr(state, label)
        for outcome in ("granted", "refused", "paused"):
            answers[endpoint, model, outcome] = getattr(state, outcome)
    yield metrics.LIMIT, calls
    yield metrics.LIMIT_PAUSE, pauses
    yield metrics.LIMIT_ANSWERS, answers


def read_engines(ledger: Ledger, names: Iterable[str]) -> Iterator[tuple[Metric, Values]]:
    """What the exporter says of these engines. Raises RedisUnavailable."""
    found = {name: engine_state(ledger, name) for name in names}
    known = {name: state for name, state in found.items() if state is not None}
    flights: dict[tuple[str, ...], float] = {}
    tokens: dict[tuple[str, ...], float] = {}
    requests: dict[tuple[str, ...], float] = {}
    for name, state in known.items():
        flights[name, "flying"], flights[name, "waiting"] = state.flying, state.waiting
        tokens[name, "in_flight"] = state.tokens
        if state.kv_tokens is not None:
            tokens[name, "cache"] = state.kv_tokens
            tokens[name, "room"] = state.kv_tokens * (state.level or 0.0)
        for label in ("running", "waiting"):
            requests[name, label] = float(state.memo.get(label) or 0)
    yield metrics.ENGINE_TRAJECTORIES, flights
    yield metrics.ENGINE_TOKENS, tokens
    yield metrics.ENGINE_REQUESTS, requests
