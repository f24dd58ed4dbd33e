"""Ends single trajectories and groups early; whole runs are ended by `Runs.cancel`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

from hermes_queue.ledger.ledger import Ledger
from hermes_queue.wire.ids import of_message

Found = Literal["waiting", "running", "final", "cancelled", "surplus", "closed", "unknown"]
"""State of a trajectory when it was to be cancelled. Only `waiting` and `running` ones are
cancelled now. `closed` is the state of a group."""


def cancel(
    ledger: Ledger,
    *,
    trajectories: Iterable[str] = (),
    groups: Iterable[str] = (),
    reason: str = "cancelled by an operator",
) -> dict[str, Found]:
    """End trajectories, and all open ones of groups, as failures of the cause `cancelled`.

    A waiting one is taken by the next worker, which publishes its end; a running one is stopped
    with its worker's next beat. The group closes when its other members have ended. May be
    repeated.

    Returns:
        The state of each; members of a group by their own ids, unless it is unknown or closed.
    """
    pairs = [(name, "") for name in trajectories]
    return _call(ledger, list(groups), pairs, reason, waiting_only=False)


def cancel_tasks(
    ledger: Ledger, task_ids: Iterable[str], *, reason: str, waiting_only: bool
) -> dict[str, Found]:
    """Like `cancel`, for ids of Celery's tasks, as Flower shows them: a trajectory and its attempt.

    Ids of former attempts and foreign ids are ignored.
    """
    pairs = [found for found in map(of_message, task_ids) if found[0]]
    return _call(ledger, [], pairs, reason, waiting_only=waiting_only)


def _call(
    ledger: Ledger, groups: list[str], pairs: Iterable[Any], reason: str, *, waiting_only: bool
) -> dict[str, Found]:
    answer = ledger.call(
        "cancel", reason=reason, waiting_only=waiting_only, groups=groups, trajectories=list(pairs)
    )
    return {each.id.decode(): cast(Found, each.state.decode()) for each in answer.found}
