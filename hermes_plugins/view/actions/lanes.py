"""Actions on a lane."""

from __future__ import annotations

from typing import Any

from hermes_plugins.view.actions.base import Acting, ActionArguments, Given, OperatorAction
from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.fleet.lanes import Breakers, known_lanes, pause_lane
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.queues import queue_keys
from hermes_queue.wire.names import check_served_lane


class OfLane(ActionArguments):
    """A lane."""

    lane: Given


def _waiting(ledger: Ledger, given: OfLane) -> int:
    """Jobs that wait in the lane.

    Raises:
        ConfigurationError: no job was sent to it in the last month, and no worker serves it.
    """
    try:
        check_served_lane(given.lane)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    served = {lane for worker in ledger.workers() for lane in worker.get("lanes", ())}
    if given.lane not in served | known_lanes(ledger):
        raise ConfigurationError(f"there is no lane {given.lane!r}")
    client: Any = ledger.client
    with explained(ledger.url), client.pipeline(transaction=False) as pipe:
        for name in queue_keys(given.lane).all:
            pipe.llen(ledger.key(name))
        return sum(pipe.execute())


def _hold(acting: Acting, given: OfLane) -> int:
    met = _waiting(acting.ledger, given)
    pause_lane(acting.ledger, given.lane, acting.reason)
    return met


def _free(acting: Acting, given: OfLane) -> int:
    met = _waiting(acting.ledger, given)
    if not Breakers(acting.ledger).close(given.lane):
        raise ConfigurationError(f"lane {given.lane!r} is not paused")
    return met


ACTIONS: tuple[OperatorAction[Any], ...] = (
    OperatorAction(
        "lane_pause",
        "Begin no more jobs of a lane, on any worker.",
        OfLane,
        _waiting,
        _hold,
        lambda given: ["lanes", "pause", given.lane],
        takes_reason=True,
    ),
    OperatorAction(
        "lane_resume",
        "Close the breaker of a lane, or end its pause.",
        OfLane,
        _waiting,
        _free,
        lambda given: ["lanes", "resume", given.lane],
    ),
)
