"""Metrics of goodput and of shared budgets, for the exporter."""

from __future__ import annotations

from collections.abc import Iterator

from hermes_queue.ledger import Ledger
from hermes_queue.ledger.accounts.fields import DRIFTED, LOST, TURNS, WORK
from hermes_queue.ledger.accounts.goodput import fleet_fields, goodput_of
from hermes_queue.ledger.accounts.shared import SharedBudgets
from hermes_queue.ledger.fleet.tally import Tally
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Values

_WINDOW_S = 3600


def read_goodput(ledger: Ledger, now: float) -> Iterator[tuple[metrics.Metric, Values]]:
    """Accounts of the deployment over its life, and its goodput during the last hour.

    `now`: Unix seconds of Redis' clock. Raises RedisUnavailable.
    """
    fields = fleet_fields(ledger)
    good = goodput_of(fields)
    for metric, kind, names in (
        (metrics.SLOT_SECONDS, "s", (*WORK, "death")),
        (metrics.LOST_SLOT_SECONDS, "l", LOST),
    ):
        sums: dict[tuple[str, ...], float] = {(name,): 0.0 for name in names}
        for name, value in fields.items():
            of, _, account = name.partition("|")
            if of == kind:
                sums[account,] = value
        yield metric, sums
    breaks = {name: n for name, n in good.drift.items() if name not in (TURNS, DRIFTED)}
    yield metrics.CONTINUED, {(): good.drift.get(TURNS, 0.0)}
    reasons: dict[tuple[str, ...], float] = {("reply",): 0.0}
    yield metrics.DRIFT, reasons | {(name,): n for name, n in breaks.items()}
    yield metrics.SANDBOX_USD, {(): sum(good.slot_usd.values())}
    yield metrics.TOKENS_LOST, {(): good.tokens_thrown_away}
    lately = goodput_of(Tally(ledger).lately(_WINDOW_S, now=now).accounts)
    per = {"slot_hour": lately.per_slot_hour, "usd": lately.per_usd}
    yield metrics.GOODPUT, {(name,): value for name, value in per.items() if value is not None}


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
