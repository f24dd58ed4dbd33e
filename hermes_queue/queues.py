"""Names of lanes and queues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hermes_queue.ledger import QueueKeys
from hermes_queue.ledger.answers import short_env
from hermes_queue.models import SCHEMA_VERSION
from hermes_queue.wire.names import QUARANTINE as QUARANTINE
from hermes_queue.wire.names import RETRY

RUN_TRAJECTORY = "hermes_queue.run_trajectory"
"""Name of the task `workers.trajectory` defines."""
SHOWN_TASK = "trajectory"
"""What people are shown in its place, followed by the env."""
QUARANTINE_SIZES = (64, 16, 4, 1)
"""Of batches in quarantine: how many suspects share a process, from the first to the last."""
_VERSIONED = re.compile(r"v\d+\.")


PRIORITY_STEPS = (0, 3, 6, 9)
PRIORITY_SEPARATOR = "\x06\x16"
"""How kombu's Redis transport names the lists of a queue; a test compares them with kombu's."""


def queue_name(lane: str) -> str:
    """The queue new jobs of a lane wait in."""
    return f"v{SCHEMA_VERSION}.{lane}"


def retry_queue_name(lane: str) -> str:
    """The queue retries and handed-back jobs of a lane wait in; polled before the other one."""
    return f"{queue_name(lane)}{RETRY}"


def served_lanes(queues: Iterable[str]) -> tuple[str, ...]:
    """The lanes whose new jobs a consumer of these queues gets, in their order."""
    start = queue_name("")
    names = [name.removeprefix(start) for name in queues if name.startswith(start)]
    return tuple(dict.fromkeys(name for name in names if not name.endswith(RETRY)))


def queues_of(named: Sequence[str]) -> list[str]:
    """What to consume from where somebody has named queues, or lanes by their mere name.

    Of each lane both queues, in the order in which they are polled.
    """
    versioned = [n if _VERSIONED.match(n) else queue_name(n) for n in named]
    lanes = served_lanes(versioned)
    ours = [name for lane in lanes for name in (retry_queue_name(lane), queue_name(lane))]
    others = [name for name in versioned if name not in ours]
    return ours + [name for name in others if not lanes or not name.endswith(RETRY)]


def quarantine_lane(lane: str, size: int) -> str:
    """Where the suspects of a lane wait that run in batches of so many, see `QUARANTINE_SIZES`."""
    return f"{lane}{QUARANTINE}" if size == 1 else f"{lane}{QUARANTINE}-{size}"


def lanes_with_quarantine(lane: str) -> list[str]:
    """A lane and those to which its suspects move; one of these stands for itself."""
    if QUARANTINE in lane:
        return [lane]
    return [lane, *(quarantine_lane(lane, size) for size in QUARANTINE_SIZES)]


def queue_keys(lane: str) -> QueueKeys:
    """Where messages of a lane can lie."""

    def lists(name: str) -> list[str]:
        return [name, *(f"{name}{PRIORITY_SEPARATOR}{step}" for step in PRIORITY_STEPS[1:])]

    return QueueKeys(lists(retry_queue_name(lane)), lists(queue_name(lane)))


def shown_name(env: str) -> str:
    """What Flower, events and logs call the task: one name per env, though there is one task."""
    return f"{SHOWN_TASK}.{short_env(env)}" if env else RUN_TRAJECTORY
