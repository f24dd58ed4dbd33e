"""The results stream: one entry per finished group, read through consumer groups.

A body is stored once (`body:{trajectory_id}`); the stream entry of a group lists its
members in plain fields, so that a consumer filters without unpacking. Each consumer group
sees every entry, each entry goes to one consumer of the group, and it is delivered again
until it is acknowledged. Acknowledge after your write or step is durable, and keep the
first record of a trajectory id: a power loss of Redis can repeat the last second.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any

import redis

from hermes_queue.cancellation import end_tasks
from hermes_queue.keyspace.connection import connect_async, redis_url
from hermes_queue.results.batches import in_batches
from hermes_queue.results.filters import GroupFilter, stream_id
from hermes_queue.results.reader import STREAM, DeliveredGroup, StreamReader, options_key
from hermes_queue.settings import RedisSettings

__all__ = ["STREAM", "DeliveredGroup", "consume", "consume_batches", "remove_consumer_group"]

_PROCESS = secrets.token_hex(4)
"""Containers of one host may share its name, and each have the process id 1."""
MAX_DELIVERIES = 5
"""A group delivered so often without being acknowledged breaks its consumers."""
PREFETCH = 16
STALE_S = 300.0
"""Unacknowledged deliveries of a consumer that was silent for so long go to another one."""


async def consume(
    group: str,
    *,
    url: str | None = None,
    consumer: str | None = None,
    run: str | None = None,
    env: str | None = None,
    complete: bool = False,
    min_mean: float | None = None,
    max_mean: float | None = None,
    min_std: float | None = None,
    start: str | float | datetime = "0",
    idle_timeout_s: float | None = None,
    stale_s: float = STALE_S,
    durable: bool = True,
    max_deliveries: int = MAX_DELIVERIES,
    prefetch: int = PREFETCH,
    renew: bool = False,
) -> AsyncGenerator[DeliveredGroup, None]:
    """Yield finished groups as they come; call `await group.ack()` on each.

    Args:
        group: name of the consumer group, e.g. "trainer". Consumers of one group share
            the work; every group sees everything.
        url: Redis; default `HERMES_QUEUE_REDIS_URL`.
        consumer: name of this consumer. What it left unacknowledged in an earlier life
            under the same name comes first, so no two that live may share one. Default: host,
            process id and a random part.
        run: only groups of the run of this id; a consumer group keeps its filter for life.
        env: only groups of this env; likewise.
        complete: only groups of which every member was measured; likewise.
        min_mean: only groups whose mean score is at least this; likewise.
        max_mean: only groups whose mean score is at most this; likewise.
        min_std: only groups whose scores differ at least so much (population standard
            deviation); likewise.
        start: "0" = from the oldest entry, "$" = only new ones, the id of an entry = after it,
            a datetime or Unix seconds = published since; used when the group is made. An
            existing group is set back with `rewind`.
        idle_timeout_s: end when nothing came for so long; default: wait for ever.
        stale_s: claim deliveries of consumers silent for so long.
        durable: whether results are kept until this group has acknowledged them, however
            long that takes. Otherwise they are until it has read nothing for an hour.
        max_deliveries: what was delivered more often without being acknowledged becomes a
            dead letter, as does a group whose bodies are gone or unreadable.
        prefetch: groups taken from Redis at once. With a long step for each, 1 leaves the rest
            to other consumers of the group.
        renew: keep what was yielded and not acknowledged from going stale, for as long as the
            event loop runs.

    Raises:
        ConfigurationError: the group exists with another filter.
        ValueError: `start` or `prefetch` is none.
        RedisUnavailable: Redis cannot be reached at the start or refuses us; later
            outages are waited out.
        ConfigurationError: a body lies in an object store whose library is not installed;
            nothing is acknowledged. An outage of the store is waited out.
        SchemaTooNew: a newer hermes-queue published this group; nothing is acknowledged.
    """
    async with reading(
        group,
        url=url,
        consumer=consumer,
        run=run,
        env=env,
        complete=complete,
        min_mean=min_mean,
        max_mean=max_mean,
        min_std=min_std,
        start=start,
        idle_timeout_s=idle_timeout_s,
        stale_s=stale_s,
        durable=durable,
        max_deliveries=max_deliveries,
        prefetch=prefetch,
        renew=renew,
    ) as deliveries:
        async for delivered in deliveries:
            yield delivered


@asynccontextmanager
async def reading(
    group: str,
    *,
    url: str | None = None,
    consumer: str | None = None,
    run: str | None = None,
    env: str | None = None,
    complete: bool = False,
    min_mean: float | None = None,
    max_mean: float | None = None,
    min_std: float | None = None,
    start: str | float | datetime = "0",
    idle_timeout_s: float | None = None,
    stale_s: float = STALE_S,
    durable: bool = True,
    max_deliveries: int = MAX_DELIVERIES,
    prefetch: int = PREFETCH,
    renew: bool = False,
) -> AsyncIterator[AsyncGenerator[DeliveredGroup, None]]:
    """The deliveries of `consume`, whose groups can be acknowledged until the context ends."""
    if prefetch < 1:
        raise ValueError("prefetch must be at least 1")
    begin = stream_id(start)
    settings = RedisSettings()
    client = connect_async(settings, url)
    reader = StreamReader(
        client,
        settings.prefix,
        group,
        consumer or f"{socket.gethostname()}-{os.getpid()}-{_PROCESS}",
        GroupFilter(run or None, env or None, complete or None, min_mean, max_mean, min_std),
        redis_url(settings, url),
        max_deliveries,
        prefetch,
    )
    keeping = asyncio.ensure_future(reader.keep(max(0.05, stale_s / 3))) if renew else None
    try:
        await reader.open(begin, durable)
        async with aclosing(reader.deliveries(idle_timeout_s, stale_s)) as deliveries:
            yield deliveries
    finally:
        if keeping:
            await end_tasks(keeping)
        await reader.give_back()
        await client.aclose()


async def consume_batches(
    group: str, *, size: int, wait_s: float = 5.0, **options: Any
) -> AsyncGenerator[list[DeliveredGroup], None]:
    """Yield lists of finished groups; call `ack()` on each group when its batch is dealt with.

    Args:
        group: name of the consumer group.
        size: groups in a list,
        wait_s: or fewer when so long passed since the first could have come. Lists are never
            empty.
        **options: those of `consume`. What was yielded is renewed unless told otherwise.

    Raises:
        HermesQueueError: as `consume`.
    """
    source = reading(group, **{"renew": True, "prefetch": size, **options})
    async with in_batches(source, size, wait_s) as batches:
        async for batch in batches:
            if batch:
                yield batch


def remove_consumer_group(client: redis.Redis, prefix: str, group: str) -> None:
    """Remove a consumer group that nobody reads any more, so that it holds back no trimming.

    Raises:
        redis.RedisError: it may still be there.
    """
    client.xgroup_destroy(prefix + STREAM, group)
    # Its fields, not DEL: a consumer's user may do that to results and dead letters, too.
    client.hdel(options_key(prefix, group), "filter", "start", "durable")
