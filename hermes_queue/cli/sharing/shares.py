"""`hermes-queue shares ...`: who gets how many of the slots."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any, cast

import click

from hermes_queue.cli.watch.table import age, duration, print_table
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.scheduling import KINDS, Scheduler, Share, Shares, SlotUse
from hermes_queue.ledger.scheduling.shares import ShareKind
from hermes_queue.terminal.escapes import label
from hermes_queue.terminal.output import echo

_HELP = """Show and set who gets how many of the slots.

Lanes, then teams, then runs, then envs share the slot-time by weight while they have jobs waiting.
What is set here holds at once, on all workers, and may be set before anything was enqueued. The
team of a run is given when it is enqueued.

\b
hermes-queue shares list
hermes-queue shares list --runs
hermes-queue shares set lane eval --reserved 0.2
hermes-queue shares set team research --weight 3 --max-running 200
hermes-queue shares set run RUN --quota-h 100 --window 1d
hermes-queue shares set fleet --half-life 1h
hermes-queue shares reset team research
"""
shares = click.Group("shares", help=_HELP)

_HEAD = ("KIND", "NAME", "RUNNING", "WAITING", "SLOTS LATELY", "SET")
_DEFAULT = "default"
_UNSET = "nothing is set"


class _OrDefault(click.ParamType):  # type: ignore[type-arg]
    """A value of another type, or `default` for one that is to be removed."""

    def __init__(self, name: str, type_: click.ParamType | Callable[[str], Any]) -> None:  # type: ignore[type-arg]
        self.name, self._type = name, click.types.convert_type(type_)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        if value == _DEFAULT:
            return _DEFAULT
        found: float = self._type.convert(value, param, ctx)
        return found


_NUMBER = _OrDefault("number", click.FLOAT)
_WHOLE = _OrDefault("number", click.INT)
_TIME = _OrDefault("time", duration)


@shares.command("list")
@click.option(
    "--runs", "by_run", is_flag=True, help="Print each run that has jobs, with its lane and team."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_shares(by_run: bool, as_json: bool) -> None:
    """Print lanes with their use of the slots, and whatever anything is set for."""
    if by_run:
        _list_runs(as_json)
        return
    with closing(Ledger.connect()) as ledger:
        found = Scheduler(ledger).usage()
    if as_json:
        for usage in found:
            echo(json.dumps(_facts(usage)))
    elif found:
        print_table([_HEAD, *map(_row, found)])
    else:
        echo("nothing is set, and no lane has been used lately")


def _list_runs(as_json: bool) -> None:
    with closing(Ledger.connect()) as ledger:
        found = Scheduler(ledger).by_run()
    if as_json:
        for use in found:
            echo(json.dumps(asdict(use)))
    elif found:
        rows = [
            (
                label(use.lane),
                _named("team", use.team),
                label(use.run_id),
                str(use.running),
                str(use.waiting),
            )
            for use in found
        ]
        print_table([("LANE", "TEAM", "RUN", "RUNNING", "WAITING"), *rows])
    else:
        echo("no jobs run or wait")


def _facts(usage: SlotUse) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": usage.kind, "name": usage.name, "running": usage.running}
    facts |= {"waiting": usage.waiting, "mean_slots": usage.mean_slots}
    return facts | {"set": usage.share.model_dump(exclude_none=True)}


def _row(usage: SlotUse) -> tuple[str, ...]:
    running, waiting = ("-" if n is None else str(n) for n in (usage.running, usage.waiting))
    lately = "-" if usage.mean_slots is None else f"{usage.mean_slots:.1f}"
    return (
        usage.kind,
        _named(usage.kind, usage.name),
        running,
        waiting,
        lately,
        _said(usage.share),
    )


def _named(kind: str, name: str) -> str:
    """The name; runs without a team are together a team without one."""
    return label(name) or ("-" if kind == "fleet" else "(none)")


def _said(share: Share) -> str:
    """`weight 3, quota 100 h per 1.0 d`."""
    known = share.model_dump(exclude_none=True)
    window_s, half_life_s = known.pop("window_s", None), known.pop("half_life_s", None)
    quota_h = known.pop("quota_h", None)
    parts = [f"{field.replace('_', '-')} {value:g}" for field, value in known.items()]
    if quota_h is not None:
        parts.append(f"quota {quota_h:g} h per {age(window_s or 86400)}")
    elif window_s is not None:
        parts.append(f"window {age(window_s)}, which counts with a quota")
    if half_life_s is not None:
        parts.append(f"half-life {age(half_life_s)}")
    return ", ".join(parts) or "-"


@shares.command("set")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", required=False)
@click.option("--weight", type=_NUMBER, help="Part of the slot-time among its siblings.")
@click.option(
    "--reserved", type=_NUMBER, help="Part of the slot-time that a lane gets before others, 0-1."
)
@click.option("--order", type=_WHOLE, help="Preference of a lane beyond that, lower first.")
@click.option("--max-running", type=_WHOLE, help="Trajectories at once.")
@click.option("--quota-h", type=_NUMBER, help="Slot-hours in each window of --window.")
@click.option(
    "--window", "window_s", type=_TIME, help="Window of the quota, e.g. 12h; a day if not set."
)
@click.option(
    "--half-life",
    "half_life_s",
    type=_TIME,
    help="Of the fleet: after this time used slot-time counts half; 30m if not set.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what is set then as JSON.")
def set_share(kind: str, name: str | None, as_json: bool, **values: float | str | None) -> None:
    """Set values for the KIND called NAME; `default` removes one, others stay.

    The KIND `fleet` has no name; the name "" of a team is that of runs without one.
    """
    changes: dict[str, Any] = {
        field: None if value == _DEFAULT else value
        for field, value in values.items()
        if value is not None
    }
    if not changes:
        raise click.UsageError("say what to set, e.g. --weight 2; see --help")
    name = _name_of(kind, name)
    with closing(Ledger.connect()) as ledger:
        share = Shares(ledger).change(cast(ShareKind, kind), name, changes)
    if as_json:
        known = share.model_dump(exclude_none=True)
        echo(json.dumps({"kind": kind, "name": name, "set": known}))
    else:
        said = _said(share)
        echo(f"{_title(kind, name)}: {_UNSET if said == '-' else said}")


def _name_of(kind: str, name: str | None) -> str:
    """The name as given; only the fleet goes without."""
    if name is None and kind != "fleet":
        hint = ' ("" is that of runs without one)' if kind == "team" else ""
        raise click.UsageError(f"name the {kind}{hint}, e.g. hermes-queue shares set {kind} NAME")
    return name or ""


def _title(kind: str, name: str) -> str:
    return kind if kind == "fleet" else f"{kind} {_named(kind, name)}"


@shares.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", required=False)
def reset(kind: str, name: str | None) -> None:
    """Set nothing any more for the KIND called NAME."""
    name = _name_of(kind, name)
    with closing(Ledger.connect()) as ledger:
        known = Shares(ledger).reset(cast(ShareKind, kind), name)
    what = _title(kind, name)
    if not known:
        raise click.ClickException(f"nothing was set for {what}; see `hermes-queue shares list`")
    echo(f"{what}: {_UNSET}")
