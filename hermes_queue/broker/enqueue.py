"""Enqueueing jobs in batches: claim them in the ledger, then send one small message each."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hermes_queue.bodies import codec
from hermes_queue.errors import PayloadTooLarge, RedisFull, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import DueJob, Ledger
from hermes_queue.ledger.fleet.lanes import note_lanes
from hermes_queue.ledger.items import put_items
from hermes_queue.models import TrajectoryJob
from hermes_queue.queues import RUN_TRAJECTORY, queue_name, retry_queue_name, shown_name
from hermes_queue.settings import ProducerSettings

logger = logging.getLogger(__name__)
_ROOM_AGAIN = 0.9


@dataclass(frozen=True, slots=True)
class EnqueueReport:
    """Number of jobs that one call enqueued or found enqueued."""

    enqueued: int
    already: int
    """Claimed by an earlier call with the same run id, hence skipped."""


def stored_item(job: TrajectoryJob, settings: ProducerSettings) -> tuple[TrajectoryJob, bytes]:
    """Return the job as its message carries it, and the item to store separately, or b"".

    Raises:
        PayloadTooLarge: the row exceeds `item_max_bytes`.
    """
    if job.item is None:
        return job, b""
    data = codec.encode_item(job.item)
    if len(data) > settings.item_max_bytes:
        raise PayloadTooLarge(
            f"row {job.instance_id!r} has {len(data)} bytes, the cap is {settings.item_max_bytes}; "
            "drop unneeded columns or raise HERMES_QUEUE_PRODUCER_ITEM_MAX_BYTES"
        )
    if len(data) <= settings.item_inline_bytes:
        return job, b""
    sha256 = hashlib.sha256(data).hexdigest()
    return job.model_copy(update={"item": None, "item_sha256": sha256}), data


def enqueue(
    jobs: Iterable[TrajectoryJob],
    *,
    ledger: Ledger,
    settings: ProducerSettings | None = None,
    config: Mapping[str, Any] | None = None,
    on_batch: Callable[[int], None] | None = None,
    on_full: Callable[[int], None] | None = None,
    publish: Callable[[Ledger, Sequence[DueJob]], None] | None = None,
) -> EnqueueReport:
    """Claim jobs in the ledger and publish their messages, batch by batch.

    Enqueueing the same job again does nothing, so a producer that was killed is simply run
    again. `config` is the run's configuration, compared with that of earlier calls.

    While more jobs wait than `ProducerSettings.backlog_max`, this call waits, and calls `on_full`
    every second with their number. `on_batch` is called with the number of jobs of each finished
    batch. An exception of either ends the call. `publish` replaces `publish_messages`.

    Raises:
        ConfigurationError: this Redis evicts keys when it is full; nothing was enqueued.
        PayloadTooLarge: an item is over the cap; earlier batches stay enqueued.
        RedisFull, RedisUnavailable: the current batch may be claimed in part; a worker publishes
            what was claimed.
    """
    section = settings or ProducerSettings()
    ledger.refuse_eviction()
    enqueued = already = 0
    remaining = iter(jobs)
    while batch := list(islice(remaining, section.batch)):
        _wait_for_room(ledger, section.backlog_max, on_full)
        travelling: list[TrajectoryJob] = []
        items: dict[str, bytes] = {}
        previous: TrajectoryJob | None = None
        for job in batch:
            if previous is not None and job.item == previous.item and travelling:
                # The samples of a group come in a row and share one item.
                same = {"item": travelling[-1].item, "item_sha256": travelling[-1].item_sha256}
                travelling.append(job.model_copy(update=same))
                continue
            light, data = stored_item(job, section)
            if data and light.item_sha256 not in items:
                items[str(light.item_sha256)] = codec.compress_item(data)
            travelling.append(light)
            previous = job
        # Before the claim: a worker may take a claimed job at once, and one without its item fails.
        put_items(ledger, items)
        for run_id, of_run in _by_run(travelling).items():
            accepted = ledger.enqueue(run_id, of_run, config=config)
            first = [
                DueJob(j.trajectory_id, 1, j.lane, j.priority, j.env, j.instance_id)
                for j in accepted
            ]
            # If this process dies before `published`, the claimed jobs may have no message. The
            # ledger keeps them as due, so a worker sends it; a second one is answered `busy`.
            (publish or publish_messages)(ledger, first)
            ids = (job.trajectory_id for job in accepted)
            ledger.published(ids, claim=accepted.claim, first=True)
            enqueued += len(accepted)
            already += len(of_run) - len(accepted)
        if on_batch:
            on_batch(len(batch))
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
        publish_messages(ledger, jobs, retry=True)
        ledger.published((job.trajectory_id for job in jobs), claim=claim)
    return len(jobs)


def publish_messages(ledger: Ledger, jobs: Sequence[DueJob], *, retry: bool = False) -> None:
    """Put one message per job into its lane's queue (with `retry`, the lane's retry queue).

    Uses a new connection, because a kept one may have gone stale since the last batch.

    Raises:
        RedisUnavailable, RedisFull: all, some or none of the messages are in the broker.
    """
    from kombu.exceptions import KombuError
    from redis import RedisError

    from hermes_queue.broker.app import app, connection  # 0.3 s that result readers never pay

    name = retry_queue_name if retry else queue_name
    try:
        with (
            explained(ledger.url),
            connection(ledger.url, ledger.prefix) as broker,
            app.amqp.Producer(broker) as producer,
            producer.batch(max(1, len(jobs))),
        ):
            for job in jobs:
                app.send_task(
                    RUN_TRAJECTORY,
                    args=[job.trajectory_id, job.attempt],
                    task_id=job.task_id,
                    queue=name(job.lane),
                    priority=job.priority,
                    argsrepr=job.label,
                    shadow=shown_name(job.env),
                    kwargsrepr="",
                    ignore_result=True,
                    retry=False,
                    producer=producer,
                )
        note_lanes(ledger, (job.lane for job in jobs))
    except (KombuError, OSError, RedisError) as error:
        if "OOM" in f"{error} {error.__cause__}":
            raise RedisFull(f"publishing {len(jobs)} jobs failed: {error}") from error
        raise RedisUnavailable(f"publishing {len(jobs)} jobs failed: {error}") from error


def _by_run(jobs: Sequence[TrajectoryJob]) -> dict[str, list[TrajectoryJob]]:
    runs: dict[str, list[TrajectoryJob]] = {}
    for job in jobs:
        runs.setdefault(job.run_id, []).append(job)
    return runs
