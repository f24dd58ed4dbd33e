"""The results stream: one entry per finished group, read through consumer groups.

The stream entry of a group lists its members in plain fields, so that consumers filter without
unpacking; each record is stored once, as `body:{trajectory_id}`. Every consumer group sees every
entry. Within a consumer group each entry goes to one consumer and is delivered again until it is
acknowledged. Acknowledge after your write or step is durable, and keep the first record of a
trajectory id: a power loss of Redis can repeat the last second.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any

import redis

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import connect_async, redis_url
from hermes_queue.results.batches import in_batches
from hermes_queue.results.evaluations import EvaluationGate
from hermes_queue.results.filters import GroupFilter, stream_id
from hermes_queue.results.reader import STREAM, DeliveredGroup, StreamReader, options_key
from hermes_queue.settings import RedisSettings
from hermes_queue.wire.names import check_name

__all__ = ["STREAM", "DeliveredGroup", "consume", "consume_batches", "remove_consumer_group"]

_PROCESS = secrets.token_hex(4)
"""Makes consumer names unique: containers may share a host name and all have process id 1."""
MAX_DELIVERIES = 5
"""Deliveries after which an unacknowledged group becomes a dead letter."""
PREFETCH = 16
STALE_S = 300.0
"""Silence of a consumer after which its unacknowledged deliveries go to another one."""


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
    allow_evaluation: bool = False,
) -> AsyncGenerator[DeliveredGroup, None]:
    """Yield finished groups as they come; call `await group.ack()` on each.

    Args:
        group: name of the consumer group, e.g. "trainer". Consumers of one group share the work;
            every consumer group receives every finished group. Its filter (`run` to `min_std`)
            is fixed when it is created.
        url: Redis; default `HERMES_QUEUE_REDIS_URL`.
        consumer: name of this consumer, unique among those that live. Groups that an earlier
            consumer of this name left unacknowledged are delivered first. Default: host, process
            id and a random part.
        run: only groups of the run with this id.
        env: only groups of this env.
        complete: only groups of which every member was measured.
        min_mean: only groups whose mean score is at least this.
        max_mean: only groups whose mean score is at most this.
        min_std: only groups whose scores have at least this population standard deviation.
        start: where a new consumer group begins: "0" = oldest entry, "$" = only new entries, an
            entry id = after that entry, a datetime or Unix seconds = published since then.
            Ignored for an existing group; use `rewind` to set it back.
        idle_timeout_s: end after this many seconds without a group; default: wait for ever.
        stale_s: take over deliveries of consumers that were silent for this many seconds.
        durable: keep results until this consumer group has acknowledged them, however long that
            takes. If False, they are kept until the group has read nothing for an hour.
        max_deliveries: a group that was delivered more often without being acknowledged becomes
            a dead letter, as does a group whose bodies are gone or unreadable.
        prefetch: groups fetched from Redis at once. If each takes long to process, 1 leaves the
            rest to other consumers of the group.
        renew: renew yielded groups until they are acknowledged, so that they do not go stale
            while the event loop runs.
        allow_evaluation: also groups of an evaluation, on which nothing may be trained (record
            field `evaluation`). Others are acknowledged without being yielded, and logged; the
            archive and the run's own results file have them.

    Raises:
        ConfigurationError: the consumer group exists with another filter, or its name or that of
            the consumer is no name: letters, digits and ._:/-.
        ValueError: `start` is not a position in the stream, or `prefetch` is below 1.
        RedisUnavailable: Redis cannot be reached at the start, or refuses the connection; later
            outages are waited out.
        ConfigurationError: a body is in an object store whose library is not installed; nothing
            is acknowledged. An outage of the store is waited out.
        SchemaTooNew: a newer hermes-queue published this group; nothing is acknowledged.
    """
    async with reading(**locals()) as deliveries:
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
    allow_evaluation: bool = False,
    on_filtered: Callable[[Mapping[str, str]], None] | None = None,
) -> AsyncIterator[AsyncGenerator[DeliveredGroup, None]]:
    """The deliveries of `consume`; groups can be acknowledged until the context ends.

    `on_filtered` gets the fields of each group that the filter leaves out.
    """
    if prefetch < 1:
        raise ValueError("prefetch must be at least 1")
    consumer = consumer or f"{socket.gethostname()}-{os.getpid()}-{_PROCESS}"
    try:
        check_name("consumer group", group)
        check_name("consumer", consumer)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    begin = stream_id(start)
    settings = RedisSettings.read()
    client = connect_async(settings, url)
    reader = StreamReader(
        client,
        settings.prefix,
        group,
        consumer,
        GroupFilter(run or None, env or None, complete or None, min_mean, max_mean, min_std),
        redis_url(settings, url),
        max_deliveries,
        prefetch,
        EvaluationGate(allowed=allow_evaluation),
        on_filtered,
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
    """Yield lists of finished groups; call `ack()` on each group once its batch is processed.

    Args:
        group: name of the consumer group.
        size: largest number of groups in a list.
        wait_s: yield a shorter list after this many seconds. Lists are never empty.
        **options: keyword arguments of `consume`. `renew` is True by default.

    Raises:
        HermesQueueError: as `consume`.
    """
    source = reading(group, **{"renew": True, "prefetch": size, **options})
    async with in_batches(source, size, wait_s) as batches:
        async for batch in batches:
            if batch:
                yield batch


def remove_consumer_group(client: redis.Redis, prefix: str, group: str) -> None:
    """Remove a consumer group that is no longer read, so that it does not block trimming.

    Raises:
        redis.RedisError: the group may still exist.
    """
    client.xgroup_destroy(prefix + STREAM, group)
    # HDEL, not DEL: the Redis user of consumers could then also delete results and dead letters.
    client.hdel(options_key(prefix, group), "filter", "start", "durable")
