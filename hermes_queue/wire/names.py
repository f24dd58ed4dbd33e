"""Names that end up in Redis keys, file names and log lines: runs, groups, trajectories, lanes."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import AfterValidator, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$", max_length=256)]
"""Hence the narrow alphabet."""

RETRY = ".retry"
"""Ending of the queue of a lane's retries and handed-back jobs."""
QUARANTINE = ".quarantine"
"""A lane's jobs under which workers died one after the other wait in the lane of this ending: each
runs alone."""
_TAKEN_BY_QUEUES = re.compile(r"(\.retry|:outcomes)$")
_TAKEN_BY_LANES = re.compile(r"\.quarantine")
_TAKEN_BY_RUNS = re.compile(r":(claimed|parked)$")
_LOOKS_REPEATED = re.compile(r"#\d+$")


def check_served_lane(lane: str) -> str:
    """`lane`, if a worker can serve it.

    Raises:
        ValueError: its queue or key would be another lane's.
    """
    if taken := _TAKEN_BY_QUEUES.search(lane):
        raise ValueError(
            f"lane {lane!r}: {taken[0]} is the ending of what belongs to lane "
            f"{lane[: taken.start()]!r}, and nobody would serve it; choose another name"
        )
    return lane


def check_lane(lane: str) -> str:
    """`lane`, if jobs may be sent to it.

    Raises:
        ValueError: it is one that jobs are moved to, or see `check_served_lane`.
    """
    if taken := _TAKEN_BY_LANES.search(lane):
        raise ValueError(
            f"lane {lane!r}: {taken[0]} is for jobs of lane {lane[: taken.start()]!r} that are "
            "moved there; choose another name"
        )
    return check_served_lane(lane)


def check_run_id(run_id: str) -> str:
    """`run_id`, if its keys are its own.

    Raises:
        ValueError: a key of another run has that name.
    """
    if taken := _TAKEN_BY_RUNS.search(run_id):
        raise ValueError(
            f"run_id {run_id!r}: {taken[0]} is the ending of a key of run "
            f"{run_id[: taken.start()]!r}; choose another run id"
        )
    return run_id


LaneName = Annotated[Name, AfterValidator(check_lane)]
"""A lane that jobs are sent to."""
RunId = Annotated[Name, AfterValidator(check_run_id)]
"""A run. It may contain dots; what follows it in ids of groups and trajectories has none."""


def make_ids(run_id: str, instance_id: str, sample_index: int) -> tuple[str, str]:
    """The (group_id, trajectory_id) of a sample: the same input gives the same ids.

    Instance ids of real datasets contain blanks and quotes, so they enter hashed.
    """
    digest = hashlib.sha256(f"{run_id}\0{instance_id}".encode()).hexdigest()[:20]
    group_id = f"{run_id}.{digest}"
    return group_id, f"{group_id}.{sample_index}"


def group_key(instance_id: str, *, repetition: int = 1, step: int | str | None = None) -> str:
    """What tells the group of an item from all others of its run; the `instance_id` of `make_ids`.

    The item's own id, followed by `#<repetition>` from the second time on that it comes, and by
    NUL and the step of the trainer, if there is one. An id that could be read so itself enters
    with its length, so that no two items, repetitions or steps share a key.
    """
    if "\0" in instance_id or _LOOKS_REPEATED.search(instance_id):
        instance_id = f"\0{len(instance_id)}:{instance_id}"
    key = f"{instance_id}#{repetition}" if repetition > 1 else instance_id
    return key if step is None else f"{key}\0{step}"


def check_ids(run_id: str, group_id: str, trajectory_id: str, sample_index: int) -> None:
    """Make sure that the ids of a sample nest, so that each says to which run it belongs.

    Raises:
        ValueError: names the field and its form.
    """
    digest = group_id.removeprefix(f"{run_id}.")
    if digest == group_id or not digest or "." in digest:
        raise ValueError("group_id must be <run_id>.<digest> without dots in it, see make_ids()")
    if trajectory_id != f"{group_id}.{sample_index}":
        raise ValueError("trajectory_id must be <group_id>.<sample_index>, see make_ids()")
