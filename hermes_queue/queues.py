"""Names of lanes and queues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hermes_queue.ledger import QueueKeys
from hermes_queue.ledger.answers import short_env
from hermes_queue.models import SCHEMA_VERSION
from hermes_queue.wire.names import QUARANTINE as QUARANTINE
from hermes_queue.wire.names import RETRY, VERIFY

RUN_TRAJECTORY = "hermes_queue.run_trajectory"
"""Name of the task that `workers.trajectory` defines."""
SHOWN_TASK = "trajectory"
"""The name shown to people instead, followed by the env."""
QUARANTINE_SIZES = (64, 16, 4, 1)
"""How many suspects share one process in quarantine, in the order they pass through."""
_VERSIONED = re.compile(r"v\d+\.")
PRIORITY_STEPS = (0, 3, 6, 9)
"""Each step has a separate list; a priority between two steps uses the lower one."""
PRIORITY_SEPARATOR = "\x06\x16"
"""How kombu's Redis transport names these lists; a test compares both with kombu's."""


def queue_name(lane: str) -> str:
    """The queue in which new jobs of a lane wait."""
    return f"v{SCHEMA_VERSION}.{lane}"


def retry_queue_name(lane: str) -> str:
    """The queue in which retries and handed-back jobs of a lane wait. It is polled first."""
    return f"{queue_name(lane)}{RETRY}"


def served_lanes(queues: Iterable[str]) -> tuple[str, ...]:
    """The lanes whose new jobs a consumer of these queues receives, in their order."""
    start = queue_name("")
    names = [name.removeprefix(start) for name in queues if name.startswith(start)]
    return tuple(dict.fromkeys(name for name in names if not name.endswith(RETRY)))


def queues_of(named: Sequence[str]) -> list[str]:
    """The queues of lanes and further queues, by name, in the order in which they are polled."""
    versioned = [n if _VERSIONED.match(n) else queue_name(n) for n in named]
    lanes = served_lanes(versioned)
    ours = [name for lane in lanes for name in (retry_queue_name(lane), queue_name(lane))]
    others = [name for name in versioned if name not in ours]
    return ours + [name for name in others if not lanes or not name.endswith(RETRY)]


def quarantine_lane(lane: str, size: int) -> str:
    """The lane of suspects that run in batches of `size`, see `QUARANTINE_SIZES`."""
    return f"{lane}{QUARANTINE}" if size == 1 else f"{lane}{QUARANTINE}-{size}"


def lanes_with_quarantine(lane: str) -> list[str]:
    """A lane and the lanes to which its suspects move; a suspects' lane stands for itself."""
    if QUARANTINE in lane:
        return [lane]
    return [lane, *(quarantine_lane(lane, size) for size in QUARANTINE_SIZES)]


def stage_lanes(lanes: Iterable[str], stages: str) -> list[str]:
    """Those that a worker with these stages serves for `lanes`: graders have lanes of their own."""
    if stages != "verify":
        return list(lanes)
    return [lane if VERIFY in lane else f"{lane}{VERIFY}" for lane in lanes]


def queue_keys(lane: str) -> QueueKeys:
    """The Redis lists that can hold messages of a lane."""
    retry, first = (
        [priority_list(name, step) for step in PRIORITY_STEPS]
        for name in (retry_queue_name(lane), queue_name(lane))
    )
    return QueueKeys(retry, first)


def priority_list(queue: str, step: int) -> str:
    """The Redis list of a queue for one of `PRIORITY_STEPS`."""
    return f"{queue}{PRIORITY_SEPARATOR}{step}" if step else queue


def shown_name(env: str) -> str:
    """The task name in Flower, events and logs: one per env, although there is only one task."""
    return f"{SHOWN_TASK}.{short_env(env)}" if env else RUN_TRAJECTORY
