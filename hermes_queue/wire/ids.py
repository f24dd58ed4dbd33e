"""Ids nest: `<run>.<digest>.<sample>`. Only the id of a run may have dots in it.

`names.make_ids` makes them. In Lua: `keyspace/lua/include/ids.lua`.
"""

from __future__ import annotations


def group_of(trajectory_id: str) -> str:
    """The id of the trajectory's group."""
    return trajectory_id.rpartition(".")[0]


def run_of(trajectory_id: str) -> str:
    """The id of the trajectory's run."""
    return trajectory_id.rsplit(".", 2)[0]


def run_of_group(group_id: str) -> str:
    """The id of the group's run."""
    return group_id.rpartition(".")[0]


def sample_of(trajectory_id: str) -> str:
    """Its sample index, as text: ids that come from elsewhere may end in anything."""
    return trajectory_id.rpartition(".")[2]
