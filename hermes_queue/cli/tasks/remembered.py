"""`hermes-queue tasks list|show|forget`: the memory of tasks, in this terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import click

from hermes_queue.cli.watch.table import age, duration, print_table
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.tasks import Task, TaskMemory, band_of
from hermes_queue.ledger.tasks.lines import line_of
from hermes_queue.terminal.escapes import label
from hermes_queue.terminal.output import echo

_HEAD = ("pass rate", "scored", "attempts", "seconds", "flaky", "deaths", "last", "task", "row")


def _band(text: str) -> tuple[float, float]:
    """A type of click for pass rates."""
    try:
        return band_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks a command is about."""

    env: str = ""
    model: str | None = None
    pass_rate: tuple[float, float] | None = None
    deadly: bool = False
    flaky: bool = False
    unused_s: float = 0.0

    def fits(self, task: Task, now: float) -> bool:
        """Whether it is about this task."""
        rate = task.rate_of(self.model)
        low, high = self.pass_rate or (0.0, 1.0)
        return (
            self.env in ("", task.env)
            and (self.model is None or rate.scored > 0)
            and (
                self.pass_rate is None
                or low <= (-1.0 if rate.pass_rate is None else rate.pass_rate) <= high
            )
            and (not self.deadly or task.deaths > 0)
            and (not self.flaky or task.flips > 0)
            and (not self.unused_s or now - task.last_seen >= self.unused_s)
        )


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--unused", "unused_s", type=duration, default="0s", metavar="TIME",
                     help="Only those that have not run for this long, e.g. 12h, 30d."),
        click.option("--flaky", is_flag=True,
                     help="Only those where a regrade of the same answer gave another score."),
        click.option("--deadly", is_flag=True, help="Only those under which workers died."),
        click.option("--pass-rate", type=_band, metavar="LOW-HIGH",
                     help="Only those with such a pass rate, e.g. 0-0 or 0.1-0.9."),
        click.option("--model", metavar="NAME",
                     help="Only those this model has been scored on; pass rates are its own. "
                     "agent:KIND for an agent without a model."),
        click.option("--env", default="", metavar="NAME", help="Only of this env."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command("list")
@_filters
@click.option("--limit", type=click.IntRange(0), default=50, show_default=True, metavar="N",
              help="Print the first N; 0 = all.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, as in an export.")
def list_tasks(limit: int, as_json: bool, **filters: object) -> None:
    """Print what is remembered of tasks; those that ran last come first.

    The pass rate is that of agents with a model: trajectories with a score of 1 or more, of those
    with a score. `seconds`: mean active time of a trajectory. `flaky`: regrades of the same answer
    that gave another score, of all.
    """
    which, now = TaskFilter(**filters), time.time()  # type: ignore[arg-type]
    with closing(Ledger.connect()) as ledger:
        memory = TaskMemory(ledger)
        matching = (task for task in memory.newest() if which.fits(task, now))
        found = islice(matching, limit or None)
        if as_json:
            for task in found:
                echo(line_of(task))
            return
        empty = True
        while page := [_row(task, which.model, now) for task in islice(found, 500)]:
            print_table([_HEAD, *page] if empty else page)
            empty = False
        if empty:
            echo("no such task is remembered")


def _row(task: Task, model: str | None, now: float) -> tuple[str, ...]:
    rate, seconds = task.rate_of(model), task.seconds_of(model)
    return (
        _percent(rate.pass_rate).rjust(9),
        str(rate.scored).rjust(6),
        str(task.attempts).rjust(8),
        ("-" if seconds is None else f"{seconds:.1f}").rjust(7),
        f"{task.flips}/{task.regraded}" if task.regraded else "-",
        str(task.deaths or "-"),
        age(now - task.last_seen),
        f"{task.env}:{task.item_sha256}",
        label(task.instance_id),
    )


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TASK...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, as in an export.")
def show(names: tuple[str, ...], as_json: bool) -> None:
    """Print all that is remembered of a task; TASK is ENV:HASH, as `list` prints it."""
    with closing(Ledger.connect()) as ledger:
        memory = TaskMemory(ledger)
        for name in names:
            task = memory.get(*_parts(name))
            if task is None:
                raise ConfigurationError(
                    f"nothing is remembered of {name!r}; see hermes-queue tasks list"
                )
            if as_json:
                echo(line_of(task))
            else:
                _show(task)


def _show(task: Task) -> None:
    now = time.time()
    seconds, cost = task.seconds, task.cost_usd / task.priced if task.priced else None
    spread = "-" if seconds.mean is None else f"{seconds.mean:.1f} ± {seconds.std or 0.0:.1f}"
    for name, value in (
        ("task", f"{task.env}:{task.item_sha256}"),
        (
            "row",
            f"{label(task.instance_id)} (env version {label(task.env_version) or '?'})",
        ),
        ("seen", f"first {age(now - task.first_seen)} ago, last {age(now - task.last_seen)} ago"),
        ("attempts", str(task.attempts)),
        ("pass rate", f"{_percent(task.rate.pass_rate)} of {task.rate.scored} scored by models"),
        ("seconds", spread),
        ("cost", "-" if cost is None else f"{cost:.4f} USD a trajectory ({task.priced} priced)"),
        ("tokens", str(task.tokens)),
        ("flakes", f"{task.flips} of {task.regraded} regrades gave another score"),
        ("deaths", f"{task.deaths} of workers" + " (poison)" * (task.deaths > 0)),
    ):
        echo(f"{name:10} {value}")
    for each in task.causes:
        what = f"{label(each.cause)} in {label(each.stage)}"
        echo(f"failed     {what}: {each.times} times, last {age(now - each.at)} ago")
    rows = [
        (label(s.solver.model), label(s.solver.policy) or "-", _percent(s.rate.pass_rate),
         str(s.rate.scored), "-" if s.seconds.mean is None else f"{s.seconds.mean:.1f}",
         age(now - s.last_seen))
        for s in task.solvers
    ]  # fmt: skip
    if rows:
        print_table([("model", "policy", "pass rate", "scored", "seconds", "last"), *rows])


@click.command()
@click.argument("names", nargs=-1, metavar="[TASK]...")
@_filters
@click.option("--all", "everything", is_flag=True, help="All tasks, if no filter is given.")
@click.option("--yes", is_flag=True, help="Forget without asking.")
def forget(names: tuple[str, ...], everything: bool, yes: bool, **filters: object) -> None:
    """Forget the named tasks (ENV:HASH), or all that match, e.g. after a change of a verifier.

    A poison item goes on running alone until `hermes-queue dead forget HASH`.
    """
    which = TaskFilter(**filters)  # type: ignore[arg-type]
    if not names and which == TaskFilter() and not everything:
        raise ConfigurationError("forget: name tasks (ENV:HASH), give a filter, or --all")
    with closing(Ledger.connect()) as ledger:
        memory = TaskMemory(ledger)
        if names:
            count = memory.forget([_parts(name) for name in names])
        else:
            if not yes:
                click.confirm("forget all tasks that match?", abort=True)
            now = time.time()
            matching = (task for task in memory.every() if which.fits(task, now))
            count = memory.forget((task.env, task.item_sha256) for task in matching)
        echo(f"forgot {count} tasks")


def _parts(name: str) -> tuple[str, str]:
    env, _, item_sha256 = name.rpartition(":")
    if not env or not item_sha256:
        raise ConfigurationError(f"{name!r} is not ENV:HASH, as hermes-queue tasks list prints it")
    return env, item_sha256


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.0f} %"


__all__ = ["TaskFilter", "forget", "list_tasks", "show"]
