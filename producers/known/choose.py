"""Which tasks are worth running, by what is remembered of them."""

from __future__ import annotations

from hermes_queue.ledger.tasks import Task
from producers.known.options import KnownOptions

ANY_MODEL = "any"


def why_not(task: Task | None, options: KnownOptions, model: str) -> str | None:
    """Why a task is left out; None if it is worth running, as every task is that is not known.

    Args:
        task: what is remembered of it.
        options: the flags.
        model: whose pass rate counts, see `Task.rate_of`; `ANY_MODEL` = of all models together.
    """
    if task is None:
        return None
    if options.skip_deadly and task.deaths:
        return "workers died under it (--skip-deadly)"
    if options.skip_flaky and task.flips:
        return "its verdict has changed for the same answer (--skip-flaky)"
    rate = task.rate_of(None if model == ANY_MODEL else model)
    known = rate.pass_rate
    if known is None or rate.scored < options.min_attempts:
        return None
    if options.skip_solved and known >= 1.0:
        return "it was always solved (--skip-solved)"
    if options.skip_impossible and known <= 0.0:
        return "it was never solved (--skip-impossible)"
    if options.pass_rate and not options.pass_rate[0] <= known <= options.pass_rate[1]:
        low, high = options.pass_rate
        return f"its pass rate is not between {low:g} and {high:g} (--pass-rate)"
    return None
