"""Celery's messages, written without Celery.

A trainer that enqueues jobs has neither Celery nor a second to import it. Celery's protocol
(version 2) and kombu's transport fix the form of a message in Redis; a test compares every field
with what these two write, and `pyproject.toml` bounds Celery's version.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from bisect import bisect
from collections.abc import Sequence
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import DueJob, Ledger
from hermes_queue.ledger.fleet.lanes import note_lanes
from hermes_queue.queues import (
    PRIORITY_SEPARATOR,
    PRIORITY_STEPS,
    RUN_TRAJECTORY,
    priority_list,
    queue_name,
    shown_name,
)

_REPLY_TO = str(uuid.uuid4())
"""Names this process; nothing is ever sent to it."""


def push_messages(ledger: Ledger, jobs: Sequence[DueJob]) -> None:
    """Put one message per new job into its lane's queue: all of them or none.

    Does the same as `enqueue.publish_messages`, on the ledger's connection.

    Raises:
        RedisUnavailable, RedisFull: the messages may or may not be in the queues.
    """
    if not jobs:
        return
    queues = {queue_name(job.lane) for job in jobs}
    with explained(ledger.url), ledger.client.pipeline(transaction=True) as pipe:
        for queue in sorted(queues):
            binding = PRIORITY_SEPARATOR.join((queue, "", queue))
            pipe.sadd(ledger.key(f"_kombu.binding.{queue}"), binding)
            pipe.sadd(ledger.key(f"_kombu.binding_permanent.{queue}"), binding)
        for job in jobs:
            step = PRIORITY_STEPS[bisect(PRIORITY_STEPS, job.priority) - 1]
            waiting = ledger.key(priority_list(queue_name(job.lane), step))
            pipe.lpush(waiting, json.dumps(_message(job)))
        pipe.execute()
    # If we die before this, the lane is unknown to overviews until the next job is sent to it.
    note_lanes(ledger, (job.lane for job in jobs))


def _message(job: DueJob) -> dict[str, Any]:
    task_id = f"{job.trajectory_id}.{job.attempt}"
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    summary = {"argsrepr": job.label, "kwargsrepr": ""}
    return {
        "body": json.dumps([[job.trajectory_id, job.attempt], {}, embed]),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": RUN_TRAJECTORY,
            "id": task_id,
            "shadow": shown_name(job.env),
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": task_id,
            "parent_id": None,
            **summary,
            "origin": f"gen{os.getpid()}@{socket.gethostname()}",
            "ignore_result": True,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        "properties": {
            "correlation_id": task_id,
            "reply_to": _REPLY_TO,
            **summary,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue_name(job.lane)},
            "priority": job.priority,
            "body_encoding": "utf-8",
            "delivery_tag": str(uuid.uuid4()),
        },
    }
