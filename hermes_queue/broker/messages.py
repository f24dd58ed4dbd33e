"""Celery's messages, written without Celery: the only way in which jobs get into a queue.

Who enqueues needs neither Celery nor a second to import it, and a batch of messages is one
transaction. Celery's protocol (version 2) and kombu's transport fix the form of a message in
Redis; `pyproject.toml` bounds their versions. A message carries no field whose absence means the
same to a worker: hundreds of thousands of them wait in Redis.
"""

from __future__ import annotations

import json
import logging
import secrets
from bisect import bisect
from collections import defaultdict
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
    retry_queue_name,
    shown_name,
)

logger = logging.getLogger(__name__)

_encode = json.JSONEncoder(separators=(",", ":")).encode


def publish_messages(
    ledger: Ledger, jobs: Sequence[DueJob], *, retry: bool = False
) -> list[DueJob]:
    """Put one message per job into its lane's queue (with `retry`, the lane's retry queue).

    Returns the jobs whose messages are there: all, unless another program has written a queue's key
    with another type. Workers remove that within seconds (`reconcile.lua`).

    Raises:
        RedisUnavailable, RedisFull: all of the messages are in the queues, or none.
    """
    if not jobs:
        return []
    lists: dict[str, list[str]] = defaultdict(list)
    of_list: dict[str, list[DueJob]] = defaultdict(list)
    queues = {job.lane: (retry_queue_name if retry else queue_name)(job.lane) for job in jobs}
    batch = secrets.token_hex(8)
    for number, job in enumerate(jobs):
        queue = queues[job.lane]
        step = PRIORITY_STEPS[bisect(PRIORITY_STEPS, job.priority) - 1]
        name = priority_list(queue, step)
        lists[name].append(_message(job, queue, f"{batch}.{number}"))
        of_list[name].append(job)
    with explained(ledger.url), ledger.client.pipeline(transaction=True) as pipe:
        for queue in queues.values():
            binding = PRIORITY_SEPARATOR.join((queue, "", queue))
            pipe.sadd(ledger.key(f"_kombu.binding.{queue}"), binding)
            pipe.sadd(ledger.key(f"_kombu.binding_permanent.{queue}"), binding)
        for name, messages in lists.items():
            pipe.lpush(ledger.key(name), *messages)
        answers = pipe.execute(raise_on_error=False)[-len(lists) :]
    # If we die before this, the lane is unknown to overviews until the next job is sent to it.
    note_lanes(ledger, queues)
    return [
        job
        for name, answer in zip(lists, answers, strict=True)
        for job in (() if _is_refused(ledger, name, answer) else of_list[name])
    ]


def _is_refused(ledger: Ledger, name: str, answer: Any) -> bool:
    """Whether the key of the list `name` is of another type, so that it takes no messages.

    Raises:
        redis.ResponseError: it takes none for another reason.
    """
    if not isinstance(answer, Exception):
        return False
    if "WRONGTYPE" not in str(answer):
        raise answer
    key = ledger.key(name)
    logger.warning("%s is no list: its jobs wait", key, extra={"action": "bad_entries"})
    return True


def _message(job: DueJob, queue: str, tag: str) -> str:
    """`tag` is unique among all messages: under it a worker acknowledges this one."""
    task_id = job.task_id
    message: dict[str, Any] = {
        "body": _encode([[job.trajectory_id, job.attempt], {}, {}]),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "task": RUN_TRAJECTORY,
            "id": task_id,
            "shadow": shown_name(job.env),
            "argsrepr": job.label,
        },
        "properties": {
            "body_encoding": "utf-8",
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_tag": tag,
            "priority": job.priority,
        },
    }
    return _encode(message)
