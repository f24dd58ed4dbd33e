"""Ending single trajectories and groups before their time; whole runs are `Runs.cancel`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

from hermes_queue.ledger.ledger import Ledger
from hermes_queue.wire.ids import of_message

Found = Literal["waiting", "running", "final", "cancelled", "surplus", "closed", "unknown"]
"""What a trajectory was when it was to be cancelled; only of `waiting` and `running` anything is
left to do. `closed`: of a group."""


def cancel(
    ledger: Ledger,
    *,
    trajectories: Iterable[str] = (),
    groups: Iterable[str] = (),
    reason: str = "cancelled by an operator",
) -> dict[str, Found]:
    """Have trajectories, and all open ones of groups, end as failures of the cause `cancelled`.

    One that waits is taken by the next worker, which publishes its end; one that runs is stopped
    with its worker's next beat. The group closes when its other members have ended. May be
    repeated.

    Returns:
        What each was; the members of a group by their own ids, unless it is unknown or closed.
    """
    pairs = [(name, "") for name in trajectories]
    return _call(ledger, list(groups), pairs, reason, waiting_only=False)


def cancel_tasks(
    ledger: Ledger, task_ids: Iterable[str], *, reason: str, waiting_only: bool
) -> dict[str, Found]:
    """The same for ids of Celery's tasks, as Flower shows them: a trajectory and its attempt.

    An id of a former attempt, or of something else, is passed over.
    """
    pairs = [found for found in map(of_message, task_ids) if found[0]]
    return _call(ledger, [], pairs, reason, waiting_only=waiting_only)


def _call(
    ledger: Ledger,
    groups: list[str],
    pairs: list[tuple[str, str]],
    reason: str,
    *,
    waiting_only: bool,
) -> dict[str, Found]:
    answer = ledger.call(
        "cancel", reason=reason, waiting_only=waiting_only, groups=groups, trajectories=pairs
    )
    return {each.id.decode(): cast(Found, each.state.decode()) for each in answer.found}
