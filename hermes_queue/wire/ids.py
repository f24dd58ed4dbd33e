"""Ids nest: `<run>.<digest>.<sample>`, and the message of an attempt is `<trajectory>.<attempt>`.

Only the id of a run may have dots in it. `names.make_ids` makes them; in Lua they are taken apart
by `keyspace/lua/include/ids.lua`.
"""

from __future__ import annotations

import re

_MESSAGE = re.compile(r"(.*\..*\.\d+)\.(\d+)(?:\.cancel)?")


def group_of(trajectory_id: str) -> str:
    """The id of the trajectory's group."""
    return trajectory_id.rpartition(".")[0]


def run_of(trajectory_id: str) -> str:
    """The id of the trajectory's run."""
    return trajectory_id.rsplit(".", 2)[0]


def sample_of(trajectory_id: str) -> str:
    """Its sample index, as text."""
    return trajectory_id.rpartition(".")[2]


def message_id(trajectory_id: str, attempt: int, *, cancel: bool = False) -> str:
    """The id of the message, and so of Celery's task, of an attempt.

    Celery drops messages whose id was revoked, hence another one for a job that only has to end as
    cancelled.
    """
    return f"{trajectory_id}.{attempt}{'.cancel' if cancel else ''}"


def of_message(message_id: str) -> tuple[str, str]:
    """Trajectory id and attempt of a message; both are empty when it is none of ours."""
    found = _MESSAGE.fullmatch(message_id)
    return (found[1], found[2]) if found else ("", "")
