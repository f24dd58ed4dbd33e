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
from hermes_queue.broker.messages import publish_messages
from hermes_queue.errors import PayloadTooLarge
from hermes_queue.ledger import DueJob, Ledger
from hermes_queue.ledger.answers import DEFAULT_PART, RunPart
from hermes_queue.ledger.items import put_items
from hermes_queue.models import TrajectoryJob
from hermes_queue.settings import ProducerSettings
from hermes_queue.telemetry.otel.producing import enqueueing
from hermes_queue.wire.parameters import program_sha256

logger = logging.getLogger(__name__)
_ROOM_AGAIN = 0.9


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
