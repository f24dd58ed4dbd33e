"""Budgets of a run, and its spending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger

BUDGETS = ("cost_usd", "tokens", "slot_s", "wall_s")
"""US dollars, prompt and completion tokens, seconds for which slots were leased, and seconds since
the run's first enqueue."""

ACCOUNT_FIELDS = (
    "created",
    *(f"{kind}:{name}" for name in BUDGETS for kind in ("budget", "spent", "reserved")),
)


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget of a run; `limit` is None for no limit."""

    name: str
    limit: float | None
    spent: float
    reserved: float = 0.0
    """Reserved for running trajectories."""

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent, so that nothing may begin."""
        return self.limit is not None and self.spent >= self.limit


def set_budgets(ledger: Ledger, run_id: str, budgets: Mapping[str, float | None]) -> None:
    """Set budgets by name (see `BUDGETS`), None for no limit; others stay unchanged.

    The run need not exist yet. This does not resume a paused run.
    """
    rows = [(name, None if limit is None else float(limit)) for name, limit in budgets.items()]
    ledger.call("run_budget", run_id=run_id, run_ttl_s=RUN_TTL_S, budgets=rows)


def accounts(ledger: Ledger, run_id: str, *, now: float) -> dict[str, Budget]:
    """The accounts of a run by name; `now` is Redis' clock, unix seconds."""
    return accounts_of(ledger.hash_fields(f"run:{run_id}", *ACCOUNT_FIELDS), now=now)


def accounts_of(raw: Sequence[str], *, now: float) -> dict[str, Budget]:
    """The accounts in the `ACCOUNT_FIELDS` of a run; "" = a field that it does not have."""
    created, *amounts = raw
    values = [_number(value) for value in amounts]
    found = {
        name: Budget(name, limit, spent or 0.0, max(0.0, round(reserved or 0.0, 6)))
        for name, limit, spent, reserved in zip(
            BUDGETS, values[::3], values[1::3], values[2::3], strict=True
        )
    }
    if (since := _number(created)) is not None:
        elapsed_s = max(0.0, now - since)
        found["wall_s"] = Budget("wall_s", found["wall_s"].limit, round(elapsed_s, 1))
    return found


def _number(text: str) -> float | None:
    """None for "" and for what no transition has written: a producer could."""
    try:
        return float(text)
    except ValueError:
        return None
