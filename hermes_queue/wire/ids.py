"""Nested ids: `<run>.<digest>.<sample>`, and `<trajectory>.<attempt>` for messages.

Only a run's id may contain dots. `names.make_ids` makes ids; in Lua, `keyspace/lua/include/ids.lua`
parses them.
"""

from __future__ import annotations

import re

_MESSAGE = re.compile(r"(.*\..*\.\d+)\.(\d+)(?:\.cancel)?")


CANCEL = ".cancel"
"""End of the ids of messages whose job only has to end as cancelled."""


def group_of(trajectory_id: str) -> str:
    """The id of the trajectory's group."""
    return trajectory_id.rpartition(".")[0]


def run_of(trajectory_id: str) -> str:
    """The id of the trajectory's run."""
    return trajectory_id.rsplit(".", 2)[0]


def sample_of(trajectory_id: str) -> str:
    """The trajectory's sample index, as text."""
    return trajectory_id.rpartition(".")[2]


def message_id(trajectory_id: str, attempt: int, *, cancel: bool = False) -> str:
    """The id of an attempt's message, which is also that of Celery's task.

    Celery drops messages with revoked ids, so a job that only has to end as cancelled (`cancel`)
    gets a different one.
    """
    return f"{trajectory_id}.{attempt}{CANCEL if cancel else ''}"


def of_message(message_id: str) -> tuple[str, str]:
    """Trajectory id and attempt of a message; both are "" if the message is not ours."""
    found = _MESSAGE.fullmatch(message_id)
    return (found[1], found[2]) if found else ("", "")
