"""A sink fed from the stream: choose, write, acknowledge, in this order.

Several groups share one write, since each write waits for the disk once. A group is acknowledged
after its rows are durable; what is delivered again is known to the sink by its ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hermes_queue.errors import HermesQueueError, RedisUnavailable
from hermes_queue.results.batches import Source, in_batches
from hermes_queue.results.consume import DeliveredGroup
from hermes_queue.sinks.base import DatasetSink
from hermes_queue.sinks.datasets.storing import NOT_THE_ROWS, store
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.sinks.selection import Selection

logger = logging.getLogger(__name__)

GROUPS_PER_WRITE = 16
TICK_S = 1.0
"""How long a group waits for others, and how often an idle sink may end a shard."""
MAX_DELIVERIES = 1000
"""Every start of a sink that is killed delivers again what it had read, which makes that no poison.
What a format fails on is put aside by itself, see `store`."""


@dataclass
class Fed:
    """What was done so far. Valid at any time."""

    groups: int = 0
    trajectories: int = 0
    """Members of those groups."""
    rows: int = 0
    """Of them, what is new in the dataset."""
    spoiled: int = 0
    """Groups that the format failed on: dead letters."""


async def feed(
    sink: DatasetSink,
    selection: Selection,
    source: Source,
    fed: Fed,
    meter: SinkMeter,
    *,
    done: Callable[[], Awaitable[bool]],
    stop: Callable[[], bool],
) -> None:
    """Write what `source` delivers until it ends.

    Args:
        sink: where rows go.
        selection: which trajectories become rows.
        source: the stream, as `reading` opens it.
        fed: is kept up to date.
        meter: likewise.
        done: asked while nothing comes: whether nothing will come any more.
        stop: asked after every write, and every second: whether to end now.

    Raises:
        HermesQueueError: the sink or the stream failed; what was not written is delivered again.
    """
    async with in_batches(source, GROUPS_PER_WRITE, TICK_S) as batches:
        async for batch in batches:
            try:
                written, spoiled = await asyncio.to_thread(store, sink, selection, batch)
            except NOT_THE_ROWS:
                await _give_back(batch)
                raise
            meter.stored(batch, written)
            for group in batch:
                fed.groups += 1
                fed.trajectories += len(group.members)
                if error := spoiled.get(group.group_id):
                    fed.spoiled += 1
                    await _put_aside(group, error)
                else:
                    await _acknowledge(group)
            fed.rows += written
            if stop() or (not batch and await done()):
                return


async def _give_back(batch: Sequence[DeliveredGroup]) -> None:
    """It is not their fault: a disk that stays full over many starts must not cost any of them."""
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
    except RedisUnavailable:  # it is on disk, and the sink drops a second delivery
        extra = {"action": "ack_failed", "group_id": group.group_id}
        logger.warning("group %s could not be acknowledged", group.group_id, extra=extra)
