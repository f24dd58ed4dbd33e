"""Enqueueing jobs in batches: claim them in the ledger, then send one small message each.

The messages are Celery's, written without Celery, and this is the only way in which jobs get into a
queue. Who enqueues needs neither Celery nor a second to import it, and a batch of messages is one
transaction. Celery's protocol (version 2) and kombu's transport fix the form of a message in
Redis; `pyproject.toml` bounds their versions. A message carries no field whose absence means the
same to a worker: hundreds of thousands of them wait in Redis.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hermes_queue.bodies import codec
from hermes_queue.errors import PayloadTooLarge
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import DueJob, Ledger
from hermes_queue.ledger.answers import DEFAULT_PART, RunPart
from hermes_queue.ledger.fleet.lanes import note_lanes
from hermes_queue.ledger.items import put_items
from hermes_queue.models import TrajectoryJob
from hermes_queue.queues import (
    PRIORITY_SEPARATOR,
    PRIORITY_STEPS,
    RUN_TRAJECTORY,
    priority_list,
    queue_name,
    retry_queue_name,
    shown_name,
)
from hermes_queue.settings import ProducerSettings
from hermes_queue.telemetry.otel.producing import enqueueing
from hermes_queue.wire.parameters import program_sha256

logger = logging.getLogger(__name__)
_ROOM_AGAIN = 0.9

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class EnqueueReport:
    """Number of jobs that one call enqueued or found enqueued."""

    enqueued: int
    already: int
    """Claimed by an earlier call with the same run id, hence skipped."""


def _without_large_items(
    jobs: Iterable[TrajectoryJob], packed: Mapping[str, bytes], settings: ProducerSettings
) -> tuple[list[TrajectoryJob], dict[str, bytes]]:
    """The jobs as they are enqueued, and the compressed rows that have to be stored before.

    `packed` are rows that jobs name by their hash.

    Raises:
        PayloadTooLarge: a row exceeds `item_max_bytes`.
    """
    light: list[TrajectoryJob] = []
    rows: dict[str, bytes] = {}
    given = kept = None
    for job in jobs:
        if given and kept and _share_item(job, given):
            update = {"item": kept.item, "item_sha256": kept.item_sha256}
            light.append(job.model_copy(update=update))
        elif job.item is not None:
            given, kept = job, _with_item_apart(job, job.item, rows, settings)
            light.append(kept)
        else:
            name = str(job.item_sha256)
            if name in packed:
                rows[name] = packed[name]
            light.append(job)
        program = program_sha256(job.agent.params)
        if program and program in packed:
            rows[program] = packed[program]
    return light, rows


def _with_item_apart(
    job: TrajectoryJob, item: Mapping[str, Any], rows: dict[str, bytes], settings: ProducerSettings
) -> TrajectoryJob:
    """The job with the hash of `item` in place of it, if it is large; it is then in `rows`."""
    data = codec.encode_item(item)
    most = settings.item_max_bytes
    if len(data) > most:
        raise PayloadTooLarge(
            f"row {job.instance_id!r} has {len(data)} bytes, the cap is {most}; "
            "drop unneeded columns or raise HERMES_QUEUE_PRODUCER_ITEM_MAX_BYTES"
        )
    if len(data) <= settings.item_inline_bytes:
        return job
    name = hashlib.sha256(data).hexdigest()
    if name not in rows:
        rows[name] = codec.compress_item(data)
    return job.model_copy(update={"item": None, "item_sha256": name})


def _share_item(job: TrajectoryJob, given: TrajectoryJob) -> bool:
    """Whether both have one item, as the samples of a group, which come in a row.

    Items of different groups may be equal in Python and yet not the same: {"x": 1}, {"x": True}.
    """
    is_one_group = job.group_id == given.group_id
    return job.item is given.item or (is_one_group and job.item == given.item)


def enqueue(
    jobs: Iterable[TrajectoryJob],
    *,
    ledger: Ledger,
    settings: ProducerSettings | None = None,
    config: Mapping[str, Any] | None = None,
    items: Mapping[str, bytes] | None = None,
    on_batch: Callable[[int], None] | None = None,
    on_full: Callable[[int], None] | None = None,
    checks_eviction: bool = True,
    part: RunPart = DEFAULT_PART,
) -> EnqueueReport:
    """Claim jobs in the ledger and publish their messages, batch by batch.

    Enqueueing the same job again does nothing, so a producer that was killed is simply run
    again. `config` is the run's configuration, compared with that of earlier calls. `items` are
    the rows that jobs name by `item_sha256`, and the programs that their agents name, by this hash
    and as `codec.compress_item` returns them; jobs that name another one need it in Redis already.
    `part`: team, weight and most running trajectories of the run (docs/scheduling.md).

    While more jobs wait than `ProducerSettings.backlog_max`, this call waits, and calls `on_full`
    every second with their number. `on_batch` is called with the number of jobs of each finished
    batch. An exception of either ends the call. Without `checks_eviction`, this Redis is not asked
    whether it evicts keys: the caller has asked it lately.

    Raises:
        ConfigurationError: this Redis evicts keys when it is full; nothing was enqueued.
        PayloadTooLarge: an item is over the cap; earlier batches stay enqueued.
        RedisFull, RedisUnavailable: the current batch may be claimed in part; a worker publishes
            what was claimed.
    """
    section = settings or ProducerSettings()
    if checks_eviction:
        ledger.refuse_eviction()
    noted = enqueueing()
    enqueued = already = 0
    remaining = iter(jobs)
    while batch := list(islice(remaining, section.batch)):
        _wait_for_room(ledger, section.backlog_max, on_full)
        light, rows = _without_large_items(batch, items or {}, section)
        # Before the claim: a worker may take a claimed job at once, and one without its item fails.
        # In every batch that names it: a Redis that crashes may lose its last second, in which an
        # earlier batch has stored it, and go on with this one.
        put_items(ledger, rows)
        for run_id, of_run in _by_run(light).items():
            accepted = ledger.enqueue(run_id, of_run, config=config, part=part)
            first = [
                DueJob(j.trajectory_id, 1, j.lane, j.priority, j.env, j.instance_id)
                for j in accepted
            ]
            # If this process dies before `published`, the claimed jobs may have no message. The
            # ledger keeps them as due, so a worker sends it; a second one is answered `busy`.
            sent = publish_messages(ledger, first)
            ids = (job.trajectory_id for job in sent)
            ledger.published(ids, claim=accepted.claim)
            if noted:
                noted.sent(accepted)
            enqueued += len(accepted)
            already += len(of_run) - len(accepted)
        if on_batch:
            on_batch(len(batch))
    if noted:
        noted.ended(enqueued, already)
    return EnqueueReport(enqueued, already)


def _wait_for_room(ledger: Ledger, most: int, on_full: Callable[[int], None] | None) -> None:
    """Return once fewer than `most` jobs wait, or, if there were more, fewer than nine tenths."""
    waiting = ledger.backlog()
    if waiting < most:
        return
    logger.warning(
        "%s jobs wait for workers: enqueueing is paused", waiting, extra={"action": "backlog_full"}
    )
    while waiting >= _ROOM_AGAIN * most:
        if on_full:
            on_full(waiting)
        time.sleep(1.0)
        waiting = ledger.backlog()


def publish_due(ledger: Ledger, *, limit: int = 500) -> int:
    """Publish the messages of delayed jobs that are due; returns their number.

    Raises:
        RedisUnavailable: the jobs stay due and are retried after the claim expires.
    """
    claim, jobs = ledger.due(limit=limit)
    if jobs:
        sent = publish_messages(ledger, jobs, retry=True)
        ledger.published((job.trajectory_id for job in sent), claim=claim)
    return len(jobs)


def _by_run(jobs: Sequence[TrajectoryJob]) -> dict[str, list[TrajectoryJob]]:
    runs: dict[str, list[TrajectoryJob]] = {}
    for job in jobs:
        runs.setdefault(job.run_id, []).append(job)
    return runs


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
