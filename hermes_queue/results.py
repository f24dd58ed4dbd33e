"""The results stream: one entry per finished group, read through consumer groups.

A body is stored once (`body:{trajectory_id}`); the stream entry of a group lists its
members in plain fields, so that a consumer filters without unpacking. Each consumer group
sees every entry, each entry goes to one consumer of the group, and it is delivered again
until it is acknowledged. Acknowledge after your write or step is durable, and keep the
first record of a trajectory id: a power loss of Redis can repeat the last second.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator

import redis

from hermes_queue.connection import connect_async, redis_url
from hermes_queue.reader import STREAM, DeliveredGroup, StreamReader, options_key
from hermes_queue.settings import RedisSettings

__all__ = ["STREAM", "DeliveredGroup", "consume", "remove_consumer_group"]

MAX_DELIVERIES = 5
"""A group delivered so often without being acknowledged breaks its consumers."""
STALE_S = 300.0
"""Unacknowledged deliveries of a consumer that was silent for so long go to another one."""


async def consume(
    group: str,
    *,
    url: str | None = None,
    consumer: str | None = None,
    run_id: str | None = None,
    env: str | None = None,
    start: str = "0",
    idle_timeout_s: float | None = None,
    stale_s: float = STALE_S,
    durable: bool = True,
    max_deliveries: int = MAX_DELIVERIES,
) -> AsyncIterator[DeliveredGroup]:
    """Yield finished groups as they come; call `await group.ack()` on each.

    Args:
        group: name of the consumer group, e.g. "trainer". Consumers of one group share
            the work; every group sees everything.
        url: Redis; default `HERMES_QUEUE_REDIS_URL`.
        consumer: name of this consumer. What it left unacknowledged in an earlier life
            under the same name comes first. Default: host and process id.
        run_id: only groups of this run; a consumer group keeps its filter for life.
        env: only groups of this env; likewise.
        start: "0" = from the oldest entry, "$" = only new ones; used when the group is made.
        idle_timeout_s: end when nothing came for so long; default: wait for ever.
        stale_s: claim deliveries of consumers silent for so long.
        durable: whether results are kept until this group has acknowledged them, however
            long that takes. Otherwise they are until it has read nothing for an hour.
        max_deliveries: what was delivered more often without being acknowledged becomes a
            dead letter, as does a group whose bodies are gone or unreadable.

    Raises:
        ConfigurationError: the group exists with another filter.
        RedisUnavailable: Redis cannot be reached at the start or refuses us; later
            outages are waited out.
        SchemaTooNew: a newer hermes-queue published this group; nothing is acknowledged.
    """
    settings = RedisSettings()
    client = connect_async(settings, url)
    reader = StreamReader(
        client,
        settings.prefix,
        group,
        consumer or f"{socket.gethostname()}-{os.getpid()}",
        {"run_id": run_id or "", "env": env or ""},
        redis_url(settings, url),
        max_deliveries,
    )
    try:
        await reader.open(start, durable)
        async for delivered in reader.deliveries(idle_timeout_s, stale_s):
            yield delivered
    finally:
        await client.aclose()


def remove_consumer_group(client: redis.Redis, prefix: str, group: str) -> None:
    """Remove a consumer group that nobody reads any more, so that it holds back no trimming.

    Raises:
        redis.RedisError: it may still be there.
    """
    client.xgroup_destroy(prefix + STREAM, group)
    client.delete(options_key(prefix, group))
