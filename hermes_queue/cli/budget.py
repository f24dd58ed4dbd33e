"""`hermes-queue budget ...`: budgets that runs share; their metrics, for the exporter."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict

import click

from hermes_queue.cli.watch.table import age, print_table
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.accounts.shared import AMOUNTS, WINDOWS, SharedBudget, SharedBudgets
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Values
from hermes_queue.terminal.output import echo

_HELP = """Set, list and lift budgets that the runs of an env, a team or a model share.

A budget counts what attempts spend that begin after it was set, failed ones too. A job for which it
has no room waits, whatever its run, and begins when there is some: with the next window, a higher
limit, or when it is lifted. Budgets of one run: `hermes-queue run budget`.

\b
hermes-queue budget set team:alpha --usd 100 --window day
hermes-queue budget set model:gpt-5-mini --tokens 2000000000
hermes-queue budget set env:swe_smith --slot-hours 500 --window week
hermes-queue budget list
hermes-queue budget lift team:alpha
"""
budget = click.Group("budget", help=_HELP)

_NAMES: dict[float, str] = {seconds: name for name, seconds in WINDOWS.items()}


def _amount(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """A positive amount, or inf for `none`."""
    if text is None:
        return None
    if text == "none":
        return math.inf
    try:
        if 0 < (amount := float(text)) < 1e15:
            return amount
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is neither a positive number nor none")


@contextmanager
def _budgets() -> Iterator[SharedBudgets]:
    with closing(Ledger.connect()) as ledger:
        yield SharedBudgets(ledger)


@budget.command("set")
@click.argument("name", metavar="KIND:NAME")
@click.option("--usd", callback=_amount, metavar="USD", help="Limit of the cost.")
@click.option("--tokens", callback=_amount, metavar="N", help="Limit of tokens of models.")
@click.option(
    "--slot-hours", callback=_amount, metavar="HOURS", help="Limit of the time of leased slots."
)
@click.option(
    "--window",
    type=click.Choice(list(WINDOWS)),
    help="Time for which spending counts, in UTC; a month has 30 days.  [default: none, for ever]",
)
def set_budget(
    name: str,
    usd: float | None,
    tokens: float | None,
    slot_hours: float | None,
    window: str | None,
) -> None:
    """Set limits of KIND:NAME, e.g. team:alpha; `none` removes one, and others stay."""
    hours_s = None if slot_hours is None else 3600 * slot_hours
    given = {"cost_usd": usd, "tokens": tokens, "slot_s": hours_s}
    limits = {key: None if n == math.inf else n for key, n in given.items() if n is not None}
    if not limits and window is None:
        raise click.UsageError("give at least one of --usd, --tokens, --slot-hours and --window")
    with _budgets() as budgets:
        budgets.set(name, limits, window_s=None if window is None else WINDOWS[window])
    echo(f"{name}: budget set")


@budget.command()
@click.argument("name", metavar="KIND:NAME")
def lift(name: str) -> None:
    """Remove the budget KIND:NAME; jobs that waited for it begin within seconds."""
    with _budgets() as budgets:
        known = budgets.lift(name)
    if not known:
        raise click.ClickException(f"no budget {name!r}; see `hermes-queue budget list`")
    echo(f"{name}: lifted")


@budget.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_budgets(as_json: bool) -> None:
    """Print limits, spending and waiting jobs of each budget."""
    with _budgets() as budgets:
        found = budgets.all()
    if as_json:
        for each in found:
            echo(json.dumps({**asdict(each), "exhausted": each.exhausted}))
        return
    if not found:
        echo("no budgets are shared; `hermes-queue budget set` makes one")
        return
    rows = [["BUDGET", "US$", "TOKENS", "SLOT-HOURS", "WINDOW", "RUNNING", "WAITING"]]
    for each in found:
        amounts = [_spent(each, amount) for amount in AMOUNTS]
        window = _NAMES.get(each.window_s, age(each.window_s)) if each.window_s else "for ever"
        rows.append([each.name, *amounts, window, str(each.running), str(each.waiting)])
    print_table(rows)


def _spent(budget: SharedBudget, amount: str) -> str:
    """`12.5 of 100`; what has no limit is shown without one."""
    unit = 3600 if amount == "slot_s" else 1
    spent, limit = budget.spent.get(amount, 0.0) / unit, budget.limits.get(amount)
    return _number(spent) if limit is None else f"{_number(spent)} of {_number(limit / unit)}"


def _number(value: float) -> str:
    """With six digits that count, and all of a large one: `12.5`, `2,000,000,000`."""
    return f"{value:.6g}" if value < 1e5 else f"{value:,.0f}"


def read_budgets(ledger: Ledger) -> Iterator[tuple[metrics.Metric, Values]]:
    """How much of each shared budget is spent, and how many jobs wait for it.

    Raises:
        RedisUnavailable: no answer.
    """
    used: dict[tuple[str, ...], float] = {}
    waiting: dict[tuple[str, ...], float] = {}
    for budget in SharedBudgets(ledger).all():
        waiting[budget.name,] = budget.waiting
        for amount, limit in budget.limits.items():
            used[budget.name, amount] = budget.spent.get(amount, 0.0) / limit if limit else 1.0
    yield metrics.BUDGET_USED, used
    yield metrics.BUDGET_WAITING, waiting
