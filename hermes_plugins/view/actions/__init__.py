"""What the role `operate` may do from the pages: the same functions as behind the commands.

base.py          `OperatorAction`: arguments, the count of what it meets, the equal command line
lanes.py         hold and free a lane
letters.py       requeue and purge dead letters
runs.py          pause, resume, cancel, purge, budget and retry of a run
trajectories.py  stop one trajectory
workers.py       pause, resume, drain and size of a worker

What is met is counted through the Redis of the pages, which may only read; what is done goes
through `HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL`. Celery is loaded by the actions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_plugins.view.actions import lanes, letters, runs, trajectories, workers
from hermes_plugins.view.actions.base import OperatorAction

ALL: tuple[OperatorAction[Any], ...] = (
    *runs.ACTIONS,
    *lanes.ACTIONS,
    *workers.ACTIONS,
    *trajectories.ACTIONS,
    *letters.ACTIONS,
)
ACTIONS: Mapping[str, OperatorAction[Any]] = {action.name: action for action in ALL}
"""By the name in `POST /api/actions/NAME`."""
