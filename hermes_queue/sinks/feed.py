"""Feeds a sink from the stream: select, write, acknowledge, in this order.

Several groups share one write, since each write waits for the disk once. A group is acknowledged
after its rows are durable; the sink recognises a repeated delivery by its ids. A group that cannot
become rows does not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import ConfigurationError, HermesQueueError, RedisUnavailable
from hermes_queue.keyspace.connection import connect_async, explained, redis_url
from hermes_queue.models import ScoredTrajectory, TrajectoryGroup
from hermes_queue.results.batches import GroupSource, in_batches
from hermes_queue.results.consume import DeliveredGroup
from hermes_queue.results.reader import options_key
from hermes_queue.settings import RedisSettings
from hermes_queue.sinks.base import DatasetSink
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.sinks.selection import Selection

logger = logging.getLogger(__name__)

NOT_THE_ROWS = (HermesQueueError, OSError, MemoryError)
"""Failures of the destination or the machine, which end the sink."""
GROUPS_PER_WRITE = 16
TICK_S = 1.0
"""Time that a group waits for others, and interval at which an idle sink may end a shard."""
MAX_DELIVERIES = 1000
"""Every start of a killed sink delivers the groups that it had read again, which does not make them
poisonous. Groups on which a format fails are filed individually, see `store`."""


@dataclass
class Fed:
    """Progress so far. Valid at any time."""

    groups: int = 0
    trajectories: int = 0
    """Members of those groups."""
    rows: int = 0
    """Rows that were added to the dataset for them."""


async def claim_consumer_group(group: str, dataset: str) -> None:
    """Bind the consumer group to the dataset: two sinks must not silently split a run.

    Args:
        group: name of the group, which need not exist yet.
        dataset: permanent id of the dataset.

    Raises:
        ConfigurationError: the group belongs to another dataset.
        RedisUnavailable: Redis does not answer.
    """
    settings = RedisSettings.read()
    opened: Any = connect_async(settings)
    key = options_key(settings.prefix, group)
    async with aclosing(opened) as client:
        with explained(redis_url(settings)):
            known = await client.hget(key, "dataset")
            if known is None:  # a full Redis refuses writes, and we free it
                await client.hsetnx(key, "dataset", dataset)
                known = await client.hget(key, "dataset")
    if known != dataset.encode():
        raise ConfigurationError(
            f"consumer group {group!r} fills another dataset, so this one would miss the "
            "groups delivered to that: omit --group or choose another name; if the other dataset "
            f"no longer exists: hermes-queue groups remove {group}"
        )


async def feed(
    sink: DatasetSink,
    selection: Selection,
    source: GroupSource,
    fed: Fed,
    meter: SinkMeter,
    *,
    done: Callable[[], Awaitable[bool]],
    stop: Callable[[], bool],
) -> None:
    """Write the groups of `source` until it ends.

    Args:
        sink: destination of the rows.
        selection: selects the trajectories that become rows.
        source: the stream, as `reading` opens it.
        fed: updated continuously.
        meter: updated continuously.
        done: asked while no group comes; True if none will come any more.
        stop: asked after every write, and every second; True to end now.

    Raises:
        HermesQueueError: the sink or the stream failed; unwritten groups are delivered again.
    """
    async with in_batches(source, GROUPS_PER_WRITE, TICK_S) as batches:
        async for batch in batches:
            known, began_ns = len(sink.held), time.time_ns()
            try:
                written, spoiled = await asyncio.to_thread(store, sink, selection, batch)
            except NOT_THE_ROWS:
                await _give_back(batch)
                raise
            meter.stored(batch, len(sink.held) - known, began_ns=began_ns)
            for group in batch:
                fed.groups += 1
                fed.trajectories += len(group.members)
                if error := spoiled.get(group.group_id):
                    await _put_aside(group, error)
                else:
                    await _acknowledge(group)
            fed.rows += written
            if stop() or (not batch and await done()):
                return


def store(
    sink: DatasetSink, selection: Selection, batch: Sequence[TrajectoryGroup]
) -> tuple[int, dict[str, Exception]]:
    """Write the batch.

    Returns:
        The number of new rows, and the format's error by id of each group that it failed on.

    A row that the format fails on is a defect, in our code or in the row. Its group is dropped,
    so that the sink and the other groups continue.
    """
    spoiled: dict[str, Exception] = {}
    chosen: dict[str, list[ScoredTrajectory]] = {}
    for group in batch:
        try:
            chosen.setdefault(group.group_id, []).extend(selection.choose(group))
        except NOT_THE_ROWS:
            raise
        except Exception as error:  # noqa: BLE001 - any error is reported for its group
            spoiled[group.group_id] = error
    try:
        return sink.write([row for rows in chosen.values() for row in rows]), spoiled
    except NOT_THE_ROWS:
        raise
    except Exception:
        logger.debug("a batch cannot be written; writing its groups one by one", exc_info=True)
    written = 0
    for group_id, rows in chosen.items():
        try:
            written += sink.write(rows)
        except NOT_THE_ROWS:
            raise
        except Exception as error:  # noqa: BLE001 - any error is reported for its group
            spoiled[group_id] = error
    return written, spoiled


async def _give_back(batch: Sequence[DeliveredGroup]) -> None:
    """Give groups back uncounted: a disk that is full at many starts must not use up deliveries."""
    with suppress(HermesQueueError):
        for group in batch:
            await group.nack(counted=False)


async def _put_aside(group: DeliveredGroup, error: Exception) -> None:
    extra = {"action": "row_failed", "group_id": group.group_id}
    logger.error("group %s has no row", group.group_id, exc_info=error, extra=extra)
    with suppress(RedisUnavailable):  # it is delivered again
        await group.reject(f"its rows cannot be made: {type(error).__name__}: {error}"[:500])


async def _acknowledge(group: DeliveredGroup) -> None:
    try:
        await group.ack()
    except RedisUnavailable:  # its rows are durable, and the sink drops repetitions
        extra = {"action": "ack_failed", "group_id": group.group_id}
        logger.warning("group %s could not be acknowledged", group.group_id, extra=extra)
