"""`hermes-queue shares ...`: who gets how many of the slots."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any, cast

import click

from hermes_queue.ledger import Ledger
from hermes_queue.ledger.scheduling import KINDS, Scheduler, Share, Shares, SlotUse
from hermes_queue.ledger.scheduling.shares import ShareKind

_HELP = """Show and set who gets how many of the slots.

Lanes, then teams, then runs, then envs share the slot-time by weight while they have jobs waiting.
What is set here holds at once, on all workers, and may be set before anything was enqueued. The
team of a run is given when it is enqueued.

\b
hermes-queue shares list
hermes-queue shares set lane eval --reserved 0.2
hermes-queue shares set team research --weight 3 --max-running 200
hermes-queue shares set run RUN --quota-h 100 --window 1d
hermes-queue shares set fleet --half-life 1h
hermes-queue shares reset team research
"""
shares = click.Group("shares", help=_HELP)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Number(click.ParamType):  # type: ignore[type-arg]
    """A number, or `default` for what was not set."""

    name = "number"

    def __init__(self, *, is_time: bool = False, is_whole: bool = False) -> None:
        self._is_time, self._is_whole = is_time, is_whole

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        text, factor = str(value).strip(), 1
        if text == "default":
            return text
        if self._is_time and text[-1:] in _UNITS:
            text, factor = text[:-1], _UNITS[text[-1]]
        try:
            return int(text) if self._is_whole else float(text) * factor
        except ValueError:
            units = ", or with one of the units s, m, h, d" if self._is_time else ""
            whole = "a whole number" if self._is_whole else "a number"
            self.fail(f"{value!r} is not {whole}{units}, nor `default`", param, ctx)


@shares.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_shares(as_json: bool) -> None:
    """Print lanes with their use of the slots, and whatever anything is set for."""
    with closing(Ledger.connect()) as ledger:
        found = Scheduler(ledger).usage()
    for usage in found:
        click.echo(json.dumps(_facts(usage)) if as_json else _line(usage))
    if not found and not as_json:
        click.echo("nothing is set, and no lane has been used lately")


def _facts(usage: SlotUse) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": usage.kind, "name": usage.name, "running": usage.running}
    facts |= {"waiting": usage.waiting, "mean_slots": usage.mean_slots}
    return facts | {"set": usage.share.model_dump(exclude_none=True)}


def _line(usage: SlotUse) -> str:
    parts = [] if usage.running is None else [f"{usage.running} running"]
    if usage.waiting is not None:
        parts.append(f"{usage.waiting} waiting")
    if usage.mean_slots is not None:
        parts.append(f"{usage.mean_slots:.1f} slots lately")
    parts += [
        f"{name.replace('_', '-')} {value:g}"
        for name, value in usage.share.model_dump(exclude_none=True).items()
    ]
    return f"{f'{usage.kind} {usage.name}'.strip()}: {', '.join(parts) or 'nothing is set'}"


@shares.command("set")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", default="")
@click.option("--weight", type=_Number(), help="Part of the slot-time among its siblings.")
@click.option(
    "--reserved", type=_Number(), help="Part of the slot-time that a lane gets before others, 0-1."
)
@click.option(
    "--order", type=_Number(is_whole=True), help="Preference of a lane beyond that, lower first."
)
@click.option("--max-running", type=_Number(is_whole=True), help="Trajectories at once.")
@click.option("--quota-h", type=_Number(), help="Slot-hours in each window.")
@click.option("--window", "window_s", type=_Number(is_time=True), help="Window of the quota: 1d.")
@click.option(
    "--half-life",
    "half_life_s",
    type=_Number(is_time=True),
    help="Of the fleet: after so long, used slot-time counts half: 30m.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what is set then as JSON.")
def set_share(kind: str, name: str, as_json: bool, **values: float | str | None) -> None:
    """Set values for the KIND called NAME; `default` removes one, others stay.

    The KIND `fleet` has no name; the name "" of a team is that of runs without one.
    """
    changes: dict[str, Any] = {
        field: None if value == "default" else value
        for field, value in values.items()
        if value is not None
    }
    if not changes:
        raise click.UsageError("say what to set, e.g. --weight 2; see --help")
    with closing(Ledger.connect()) as ledger:
        share = Shares(ledger).change(cast(ShareKind, kind), name, changes)
    _say(kind, name, share, as_json)


def _say(kind: str, name: str, share: Share, as_json: bool) -> None:
    known = share.model_dump(exclude_none=True)
    if as_json:
        click.echo(json.dumps({"kind": kind, "name": name, "set": known}))
        return
    text = ", ".join(f"{field.replace('_', '-')} {value:g}" for field, value in known.items())
    click.echo(f"{f'{kind} {name}'.strip()}: {text or 'nothing is set'}")


@shares.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", default="")
def reset(kind: str, name: str) -> None:
    """Set nothing any more for the KIND called NAME."""
    with closing(Ledger.connect()) as ledger:
        known = Shares(ledger).reset(cast(ShareKind, kind), name)
    what = f"{kind} {name}".strip()
    if not known:
        raise click.ClickException(f"nothing was set for {what}; see `hermes-queue shares list`")
    click.echo(f"{what}: nothing is set")
