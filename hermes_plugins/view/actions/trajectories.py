"""Actions on one trajectory."""

from __future__ import annotations

from typing import Any

from hermes_plugins.view.actions.base import Acting, ActionArguments, Given, OperatorAction
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger.cancelling import cancel
from hermes_queue.ledger.ledger import Ledger


class OfTrajectory(ActionArguments):
    """A trajectory that waits or runs."""

    trajectory: Given


def _is_open(ledger: Ledger, given: OfTrajectory) -> int:
    [state] = ledger.hash_fields(f"traj:{given.trajectory}", "state")
    if state not in ("queued", "running"):
        raise ConfigurationError(
            f"{given.trajectory} has ended already ({state})"
            if state
            else f"{given.trajectory} is unknown in this Redis"
        )
    return 1


def _stop(acting: Acting, given: OfTrajectory) -> int:
    found = cancel(acting.ledger, trajectories=[given.trajectory], reason=acting.reason)
    if found.get(given.trajectory) not in ("waiting", "running"):
        raise ConfigurationError(f"{given.trajectory} has ended already, or is unknown")
    return 1


ACTIONS: tuple[OperatorAction[Any], ...] = (
    OperatorAction(
        # The ledger ends it, and not Celery's `terminate`: that one names an attempt, and would
        # miss a retry that has begun since the page was drawn.
        "trajectory_stop",
        "End one trajectory; it is published as cancelled, without a score.",
        OfTrajectory,
        _is_open,
        _stop,
        lambda given: ["run", "cancel", "--trajectory", given.trajectory],
        takes_reason=True,
    ),
)
