"""Actions on a whole run."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import StringConstraints, field_validator

from hermes_plugins.view.actions.base import (
    Acting,
    ActionArguments,
    Given,
    OperatorAction,
    bounded,
    options,
)
from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.dead import DeadLetters, LetterFilter
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.runs import RunInfo, Runs

NewLimit = float | Literal["none"] | None
_FLAGS = {
    "budget_usd": "cost",
    "budget_tokens": "tokens",
    "budget_slot_hours": "slot-hours",
    "budget_wall_s": "wall",
}
_ACCOUNTS = {
    "budget_usd": ("cost_usd", 1),
    "budget_tokens": ("tokens", 1),
    "budget_slot_hours": ("slot_s", 3600),
    "budget_wall_s": ("wall_s", 1),
}
"""The account of each argument, and how many of its units make one of the argument's."""


class OfRun(ActionArguments):
    """A run."""

    run: Given


class RunBudget(OfRun):
    """New limits; those that are missing stay."""

    budget_usd: NewLimit = None
    """US dollars; "none" removes the limit, here and below."""
    budget_tokens: NewLimit = None
    budget_slot_hours: NewLimit = None
    budget_wall_s: NewLimit = None

    @field_validator(*_FLAGS)
    @classmethod
    def _positive(cls, value: NewLimit) -> NewLimit:
        if isinstance(value, float) and not 0 < value < math.inf:
            raise ValueError("neither a positive number nor none")
        return value

    @property
    def given(self) -> dict[str, float | Literal["none"]]:
        """The limits that are set, by argument."""
        found = {name: getattr(self, name) for name in _FLAGS}
        return {name: value for name, value in found.items() if value is not None}


class RunRetry(OfRun):
    """Failed trajectories of a run."""

    cause: Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    """Only those that failed of it; "" = all."""


def _info(ledger: Ledger, given: OfRun) -> RunInfo:
    return Runs(ledger).get(given.run)


def _open(ledger: Ledger, given: OfRun) -> int:
    counters = _info(ledger, given).counters
    return counters.queued + counters.running


def _pause(acting: Acting, given: OfRun) -> int:
    open_jobs = _open(acting.ledger, given)
    Runs(acting.ledger).pause(given.run, acting.reason)
    return open_jobs


def _resume(acting: Acting, given: OfRun) -> int:
    Runs(acting.ledger).resume(given.run)
    return _open(acting.ledger, given)


def _cancel(acting: Acting, given: OfRun) -> int:
    return Runs(acting.ledger).cancel(given.run, acting.reason)


def _to_purge(ledger: Ledger, given: OfRun) -> int:
    info = _info(ledger, given)
    open_jobs = info.counters.queued + info.counters.running
    if open_jobs:
        raise ConfigurationError(
            f"run {given.run!r} has {open_jobs} waiting or running trajectories; cancel it first"
        )
    return info.counters.total


def _purge(acting: Acting, given: OfRun) -> int:
    count = _to_purge(acting.ledger, given)
    Runs(acting.ledger).purge(given.run)
    return count


def _to_budget(ledger: Ledger, given: RunBudget) -> int:
    if not given.given:
        raise ConfigurationError("give a budget: a positive number, or none")
    return _open(ledger, given)


def _budget(acting: Acting, given: RunBudget) -> int:
    met = _to_budget(acting.ledger, given)
    paused_by = _info(acting.ledger, given).paused_by
    limits: dict[str, float | None] = {}
    for name, value in given.given.items():
        account, units = _ACCOUNTS[name]
        limits[account] = None if value == "none" else units * float(value)
    set_budgets(acting.ledger, given.run, limits)
    if paused_by == "budget":
        Runs(acting.ledger).resume(given.run)
    return met


def _budget_command(given: RunBudget) -> list[str]:
    flags = {_FLAGS[name]: _written(value) for name, value in given.given.items()}
    return ["run", "budget", given.run, *options(**flags)]


def _written(value: float | Literal["none"]) -> str:
    return value if value == "none" else f"{value:.15g}"


def _failed(ledger: Ledger, given: RunRetry) -> int:
    """Failures without a dead letter, and letters with a job."""
    _info(ledger, given)
    selection = LetterFilter(run_id=given.run, cause=given.cause)
    letters = sum(bool(each.fields.get("job")) for each in DeadLetters(ledger).find(selection))
    client: Any = ledger.client
    with explained(ledger.url):  # each has its job in it; a scan may return one twice
        kept = {
            name
            for name, value in client.hscan_iter(ledger.key(f"failed:{given.run}"), count=500)
            if given.cause in ("", json.loads(value)[0])
        }
    return letters + len(kept)


def _retry(acting: Acting, given: RunRetry) -> int:
    from hermes_queue.broker.rerun import rerun_failed

    _info(acting.ledger, given)
    again = rerun_failed(acting.ledger, given.run, given.cause, on_full=refuse_backlog)
    return bounded(again, acting.stopping)


def refuse_backlog(waiting: int) -> None:
    """Refuse to enqueue where a producer would wait, since a request cannot.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(f"{waiting} jobs wait for workers: let them do some first")


def _named(given: OfRun) -> str:
    return given.run


ACTIONS: tuple[OperatorAction[Any], ...] = (
    OperatorAction(
        "run_pause",
        "Begin no more jobs; running trajectories wait before their next turn.",
        OfRun,
        _open,
        _pause,
        lambda given: ["run", "pause", given.run],
        takes_reason=True,
    ),
    OperatorAction(
        "run_resume",
        "Go on with a paused run.",
        OfRun,
        _open,
        _resume,
        lambda given: ["run", "resume", given.run],
    ),
    OperatorAction(
        "run_cancel",
        "End a run for good; nothing that is open is published.",
        OfRun,
        _open,
        _cancel,
        lambda given: ["run", "cancel", given.run],
        confirm=_named,
        takes_reason=True,
    ),
    OperatorAction(
        "run_purge",
        "Forget a run that is done or cancelled; its results stay.",
        OfRun,
        _to_purge,
        _purge,
        lambda given: ["run", "purge", given.run],
        confirm=_named,
    ),
    OperatorAction(
        "run_budget",
        "Set budgets; a run that its budget paused goes on.",
        RunBudget,
        _to_budget,
        _budget,
        _budget_command,
    ),
    OperatorAction(
        "run_retry",
        "Run failed trajectories again, each as a group of its own.",
        RunRetry,
        _failed,
        _retry,
        lambda given: ["run", "retry", given.run, *options(cause=given.cause)],
    ),
)
