"""Feeds a sink from the stream: select, write, acknowledge, in this order.

Several groups share one write, since each write waits for the disk once. A group is acknowledged
after its rows are durable; the sink recognises a repeated delivery by its ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hermes_queue.errors import HermesQueueError, RedisUnavailable
from hermes_queue.results.batches import GroupSource, in_batches
from hermes_queue.results.consume import DeliveredGroup
from hermes_queue.sinks.base import DatasetSink
from hermes_queue.sinks.datasets.storing import NOT_THE_ROWS, store
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.sinks.selection import Selection

logger = logging.getLogger(__name__)

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
    spoiled: int = 0
    """Groups on which the format failed, which became dead letters."""


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
