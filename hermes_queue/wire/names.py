"""Names of runs, groups, trajectories and lanes, and the ids derived from them."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import AfterValidator, Field

NAME_CHARACTERS = 256
_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
Name = Annotated[str, Field(pattern=_PATTERN, max_length=NAME_CHARACTERS)]
"""Narrow alphabet: names become Redis keys, file names and parts of log lines."""

RETRY = ".retry"
"""Suffix of the queue for a lane's retries and handed-back jobs."""
QUARANTINE = ".quarantine"
"""Suffix of the lane in which jobs wait whose workers died repeatedly; each runs alone."""
VERIFY = ".verify"
"""Suffix of the lane in which trajectories wait to be graded whose agents are done."""
_LOOKS_REPEATED = re.compile(r"#\d+$")


def check_name(what: str, name: str) -> str:
    """Return `name` of a `what`. Raises ValueError if it is no `Name`."""
    if len(name) > NAME_CHARACTERS or not re.fullmatch(_PATTERN, name):
        raise ValueError(
            f"{what} {name[:80]!r}: write letters, digits and ._:/- (first a letter or "
            f"digit), {NAME_CHARACTERS} at most"
        )
    return name


def check_served_lane(lane: str) -> str:
    """Return `lane`. Raises ValueError if it is no name, or its queue or key would be another's."""
    use = "the ending {} is reserved for queues and keys of lane"
    reserved = r"(\.retry|:outcomes|:endpoints|:endpoint:.*)$"
    return _unreserved("lane", check_name("lane", lane), reserved, use)


def check_lane(lane: str) -> str:
    """Return `lane`. Raises ValueError if it is reserved for jobs that are moved there."""
    _unreserved("lane", lane, r"\.quarantine", "{} is reserved for jobs moved there from lane")
    _unreserved("lane", lane, r"\.verify$", "{} is reserved for graders of lane")
    return check_served_lane(lane)


def check_run_id(run_id: str) -> str:
    """Return `run_id`. Raises ValueError if its keys could be those of another run."""
    use = "the ending {} is reserved for keys of run"
    return _unreserved("run_id", run_id, r":(claimed|parked|ahead|held)$", use)


def _unreserved(what: str, name: str, reserved: str, use: str) -> str:
    if taken := re.search(reserved, name):
        other = name[: taken.start()]
        raise ValueError(
            f"{what} {name!r}: {use.format(taken[0])} {other!r}; choose another "
            f"{'name' if what == 'lane' else 'run id'}"
        )
    return name


LaneName = Annotated[Name, AfterValidator(check_lane)]
"""A lane that jobs may be sent to."""
RunId = Annotated[Name, AfterValidator(check_run_id)]
"""A run id. It may contain dots; the parts that group and trajectory ids append to it do not."""


def make_ids(run_id: str, instance_id: str, sample_index: int) -> tuple[str, str]:
    """The (group_id, trajectory_id) of a sample; equal input gives equal ids.

    The instance id enters hashed, since those of real datasets contain blanks and quotes.
    """
    digest = hashlib.sha256(f"{run_id}\0{instance_id}".encode()).hexdigest()[:20]
    group_id = f"{run_id}.{digest}"
    return group_id, f"{group_id}.{sample_index}"


def group_key(instance_id: str, *, repetition: int = 1, step: int | str | None = None) -> str:
    """A key that is unique per item, repetition and step within a run.

    Pass it to `make_ids` as `instance_id`. It is the item's own id, followed by `#<repetition>`
    from the second repetition on, and by NUL and the trainer's step if there is one. An id that
    could be misread as such a key is prefixed with its length, so that no two items, repetitions
    or steps share a key.
    """
    if "\0" in instance_id or _LOOKS_REPEATED.search(instance_id):
        instance_id = f"\0{len(instance_id)}:{instance_id}"
    key = f"{instance_id}#{repetition}" if repetition > 1 else instance_id
    return key if step is None else f"{key}\0{step}"


def check_ids(run_id: str, group_id: str, trajectory_id: str, sample_index: int) -> None:
    """Raise ValueError unless the ids of a sample nest, so that each contains its run id."""
    digest = group_id.removeprefix(f"{run_id}.")
    if digest == group_id or not digest or "." in digest:
        raise ValueError("group_id must be <run_id>.<digest> without dots in it, see make_ids()")
    if trajectory_id != f"{group_id}.{sample_index}":
        raise ValueError("trajectory_id must be <group_id>.<sample_index>, see make_ids()")
