"""`hermes-queue run ...`: list, pause, resume, cancel and purge runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hermes_queue.cli.watch.finite import FiniteRange
from hermes_queue.cli.watch.table import age, ahead_of_trainer, print_table
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger, RunInfo, Runs
from hermes_queue.ledger import policy as policies
from hermes_queue.ledger.accounts.drift import drift_of, set_max_drift
from hermes_queue.ledger.answers import MAIN_COUNTERS
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.cancelling import cancel as cancel_some
from hermes_queue.ledger.fleet.pacing import AHEAD_MAX, RunPace, pace_of, set_pace
from hermes_queue.ledger.run_lock import kept_lock
from hermes_queue.terminal.escapes import label
from hermes_queue.terminal.output import echo

Names = tuple[str, ...]


@contextmanager
def _runs() -> Iterator[Runs]:
    with closing(Ledger.connect()) as ledger:
        yield Runs(ledger)


def _row(info: RunInfo) -> dict[str, Any]:
    row = asdict(info)
    return {**row, **row.pop("counters")}


def _account(name: str, spent: float, limit: float | None, reserved: float) -> list[str]:
    """A line of `show`: the amount spent, its limit, and the part reserved for running work."""
    of = "" if limit is None else f" of {limit:g} ({100 * spent / limit:.0f} %)"
    aside = f", {reserved:g} reserved" if reserved else ""
    return [f"spent.{name}", f"{spent:g}{of}{aside}"]


_HELP = """List the runs of this deployment; pause, resume, cancel and purge them.

\b
hermes-queue run list
hermes-queue run pause my-run --reason "endpoint is down"
hermes-queue run resume my-run
hermes-queue run budget my-run --tokens 200000000
hermes-queue run policy my-run --version 12
hermes-queue run pace my-run --max-ahead 48
hermes-queue run retry my-run
hermes-queue run lock my-run --out my-run.lock.json
hermes-queue run cancel --trajectory my-run.0fb2a7c1.3
"""
run = click.Group("run", help=_HELP)


@run.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_(as_json: bool) -> None:
    """Print one line per run, the most recently enqueued one first."""
    with _runs() as runs:
        infos = runs.several(runs.ids())
    if as_json:
        for info in infos:
            echo(json.dumps(_row(info)))
        return
    table = [["RUN", "STATE", "ENV", "AGENT", *map(str.upper, MAIN_COUNTERS), "AGE"]]
    for info in infos:
        counts = [str(getattr(info.counters, name)) for name in MAIN_COUNTERS]
        env, agent = (str(info.config.get(name) or "-") for name in ("env", "agent"))
        table.append(
            [info.run_id, info.state, env, agent, *counts, age(time.time() - info.created)]
        )
    print_table(table)


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(run_id: str, as_json: bool) -> None:
    """Print state, counters, spending and the locked configuration of RUN."""
    with _runs() as runs:
        row = _row(runs.get(run_id))
    if as_json:
        echo(json.dumps(row))
        return
    config, accounts, pace = row.pop("config"), row.pop("accounts"), row.pop("pace")
    del row["counters"]  # they stand in rows of their own, too
    row |= row.pop("part")
    row["created"] = f"{age(time.time() - row['created'])} ago"
    lines = [[name, label(str(value))] for name, value in row.items() if value not in ("", None)]
    if pace:
        lines.append(["ahead", ahead_of_trainer(RunPace(**pace), time.time())])
    lines += [_account(**account) for account in accounts.values()]
    lines += [[f"config.{name}", json.dumps(value)] for name, value in sorted(config.items())]
    print_table(lines)


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write it to a file.")
def lock(run_id: str, out: Path | None) -> None:
    """Print what RUN was made from: flags, hash of its rows, versions; no secrets.

    `python -m producers NAME --from-lock FILE` makes the run again, or says what differs.
    """
    with _runs() as runs:
        text = kept_lock(runs.ledger, run_id)
    if out is None:
        echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: {error.strerror or error}") from error


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--reason", default="", help="Reason that list and show display.")
def pause(run_id: str, reason: str) -> None:
    """Start no more jobs of RUN; running trajectories wait at their next turn."""
    with _runs() as runs:
        runs.pause(run_id, reason)
    echo(f"{run_id}: paused; running trajectories wait at their next turn")


@run.command()
@click.argument("run_id", metavar="RUN")
def resume(run_id: str) -> None:
    """Resume a paused RUN. Repeat the command if it was interrupted."""
    with _runs() as runs:
        back = runs.resume(run_id)
    echo(f"{run_id}: resumed, {back} parked jobs requeued")


def _limit(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """A positive amount, or inf for `none`."""
    if text is None:
        return None
    if text == "none":
        return math.inf
    try:
        if 0 < (amount := float(text)) < math.inf:
            return amount
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is neither a positive number nor none")


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--cost", callback=_limit, metavar="USD", help="Limit of the cost of model calls and slots."
)
@click.option(
    "--tokens", callback=_limit, metavar="N", help="Limit of prompt and completion tokens together."
)
@click.option(
    "--slot-hours", callback=_limit, metavar="HOURS", help="Limit of the time of leased slots."
)
@click.option(
    "--wall", callback=_limit, metavar="SECONDS", help="Limit of the time since the first enqueue."
)
def budget(
    run_id: str,
    cost: float | None,
    tokens: float | None,
    slot_hours: float | None,
    wall: float | None,
) -> None:
    """Set the budgets of RUN; `none` removes one. A run that its budget paused is resumed."""
    given = {"cost_usd": cost, "tokens": tokens, "wall_s": wall}
    given["slot_s"] = None if slot_hours is None else 3600 * slot_hours
    budgets = {name: limit for name, limit in given.items() if limit is not None}
    if not budgets:
        raise click.UsageError("give at least one of --cost, --tokens, --slot-hours and --wall")
    with _runs() as runs:
        paused_by = runs.get(run_id).paused_by
        set_budgets(
            runs.ledger,
            run_id,
            {name: None if limit == math.inf else limit for name, limit in budgets.items()},
        )
        echo(f"{run_id}: budget set")
        if paused_by == "budget":
            echo(f"{run_id}: resumed, {runs.resume(run_id)} parked jobs requeued")


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--version", type=click.IntRange(min=0), help="Version that is served from now on.")
@click.option("--force", is_flag=True, help="Also set a version older than the current one.")
def policy(run_id: str, version: int | None, force: bool) -> None:
    """Set the policy version that serves RUN now; without --version, print it."""
    with _runs() as runs:
        if version is not None:
            policies.set_version(runs.ledger, run_id, version, force=force)
        now = policies.version_of(runs.ledger, run_id)
    echo(f"{run_id}: {'no policy version' if now is None else f'policy version {now}'}")


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--max-ahead", type=click.IntRange(1, AHEAD_MAX), metavar="N", help="Groups ahead at most."
)
@click.option("--off", is_flag=True, help="Let groups begin whatever the trainer does.")
def pace(run_id: str, max_ahead: int | None, off: bool) -> None:
    """Hold RUN back while N groups are ahead of its trainer; without an option, print the pace."""
    if max_ahead is not None and off:
        raise click.UsageError("--max-ahead and --off exclude each other")
    with _runs() as runs:
        if max_ahead is not None or off:
            set_pace(runs.ledger, run_id, max_ahead)
        found, now = pace_of(runs.ledger, run_id), time.time()
    echo(f"{run_id}: {ahead_of_trainer(found, now) if found else 'not paced'}")


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--max-drift",
    type=FiniteRange(0, 1),
    metavar="SHARE",
    help="Share of turns that may drift before RUN is paused, e.g. 0.01.",
)
@click.option("--off", is_flag=True, help="Never pause RUN for drift.")
def drift(run_id: str, max_drift: float | None, off: bool) -> None:
    """Pause RUN if its tokens drift more than allowed; without an option, print its drift.

    A turn has drifted if its prompt renders the last reply to other tokens than were sampled, for
    no reason that is known. A run that is paused for drift is resumed.
    """
    if max_drift is not None and off:
        raise click.UsageError("--max-drift and --off exclude each other")
    with _runs() as runs:
        if max_drift is not None or off:
            set_max_drift(runs.ledger, run_id, max_drift)
            if (pause := runs.paused(run_id)) and pause.by == "drift":
                runs.resume(run_id)
        found = drift_of(runs.ledger, run_id)
        if not found.turns and found.max_drift is None:
            runs.get(run_id)  # it may be misspelt
    share = "" if found.share is None else f" ({100 * found.share:.2f} %)"
    limit = "no limit" if found.max_drift is None else f"at most {100 * found.max_drift:g} %"
    reasons = "".join(f"; {name} {count}" for name, count in sorted(found.reasons.items()))
    echo(f"{run_id}: {found.drifted} of {found.turns} turns drifted{share}, {limit}{reasons}")


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--cause", default="", help="Only failures of this cause, e.g. model.")
@click.option(
    "--groups",
    is_flag=True,
    help="Run all samples of their groups again, as new groups of the same size.",
)
def retry(run_id: str, cause: str, groups: bool) -> None:
    """Run the failed trajectories of RUN again, each as a separate group.

    Their groups are closed, so they cannot return to them; the new groups name the old
    trajectories in `requeued_from`. A trainer that takes groups of one size refuses such groups of
    one: use --groups for it.
    """
    from hermes_queue.broker.rerun import rerun_failed, rerun_groups

    with _runs() as runs:
        runs.get(run_id)
        count = 0
        for again in (rerun_groups if groups else rerun_failed)(runs.ledger, run_id, cause):
            count += 1
            echo(f"{again.old}: failed ({again.cause}), runs again as {again.new}")
    echo(f"{run_id}: {count} {'groups' if groups else 'trajectories'} run again")


_FOUND = {
    "waiting": "waiting; the next worker publishes it as cancelled",
    "running": "running; its worker stops it within one heartbeat and publishes it as cancelled",
    "closed": "its group is closed already",
    "unknown": "unknown in this Redis",
}


def _cancel_some(ledger: Ledger, trajectories: Names, groups: Names, reason: str) -> None:
    """Cancel trajectories and groups, and print the result for each.

    Raises:
        ConfigurationError: some are unknown; the others are cancelled anyway.
    """
    why = reason or "cancelled by an operator"
    found = cancel_some(ledger, trajectories=trajectories, groups=groups, reason=why)
    for name, state in found.items():
        if state != "unknown":
            echo(f"{name}: {_FOUND.get(state, f'has ended already ({state})')}")
    if unknown := [name for name, state in found.items() if state == "unknown"]:
        raise ConfigurationError(
            f"{', '.join(unknown)}: {_FOUND['unknown']}; a trajectory's id is RUN.GROUP.SAMPLE "
            "(Flower adds .ATTEMPT), a group's RUN.GROUP"
        )


_CANCEL_HELP = """End RUN for good: drop waiting jobs, stop running trajectories within a heartbeat.

With --trajectory and --group, which may be repeated, only these end, and RUN may be left out.
Each is published as cancelled, without a score, so that its group can close; a group closes
with the members that were measured.

\b
hermes-queue run cancel my-run
hermes-queue run cancel --trajectory my-run.0fb2a7c1.3
hermes-queue run cancel my-run --group my-run.0fb2a7c1 --yes

Exit code 2: RUN or an id is unknown.
"""


@run.command(help=_CANCEL_HELP)
@click.argument("run_id", metavar="[RUN]", default="")
@click.option(
    "--trajectory", "trajectories", multiple=True, metavar="ID", help="Cancel only this trajectory."
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="ID",
    help="Cancel only the open trajectories of this group.",
)
@click.option(
    "--reason",
    default="",
    help="Reason that show displays, and that is in the records of waiting jobs.",
)
@click.option("--yes", is_flag=True, help="Cancel without asking.")
def cancel(run_id: str, trajectories: Names, groups: Names, reason: str, yes: bool) -> None:
    """Cancel a run, trajectories or groups; the help is `_CANCEL_HELP`."""
    if not run_id and not trajectories and not groups:
        raise click.UsageError("say what to cancel: RUN, --trajectory ID or --group ID")
    for name in (*trajectories, *groups):
        if run_id and not name.startswith(f"{run_id}."):
            raise click.UsageError(
                f"{name} does not belong to {run_id}: ids begin with their run's id"
            )
    with _runs() as runs:
        if trajectories or groups:
            if not yes:
                click.confirm(f"cancel {', '.join((*trajectories, *groups))}?", abort=True)
            _cancel_some(runs.ledger, trajectories, groups, reason)
            return
        left = runs.get(run_id).counters
        if not yes:
            click.confirm(
                f"cancel {left.queued + left.running} trajectories of {run_id}?", abort=True
            )
        count = runs.cancel(run_id, reason)
    echo(f"{run_id}: {count} trajectories cancelled")


@run.command()
@click.argument("run_id", metavar="RUN")
def purge(run_id: str) -> None:
    """Delete RUN, which must be done or cancelled, from the ledger; its results stay."""
    with _runs() as runs:
        runs.purge(run_id)
    echo(f"{run_id}: purged")
