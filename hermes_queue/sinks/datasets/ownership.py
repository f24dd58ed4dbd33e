"""A consumer group fills one dataset: two that shared it would each get a part, unseen."""

from __future__ import annotations

from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import connect_async, explained, redis_url
from hermes_queue.results.reader import options_key
from hermes_queue.settings import RedisSettings


async def claim_consumer_group(group: str, dataset: str) -> None:
    """Note that the consumer group belongs to the dataset, or check that it does.

    Args:
        group: its name; it need not exist yet.
        dataset: what names the dataset for good.

    Raises:
        ConfigurationError: it belongs to another dataset.
        RedisUnavailable: no answer.
    """
    settings = RedisSettings()
    client: Any = connect_async(settings)
    key = options_key(settings.prefix, group)
    try:
        with explained(redis_url(settings)):
            known = await client.hget(key, "dataset")
            if known is None:  # a Redis that is full refuses writes, and we are who makes room
                await client.hsetnx(key, "dataset", dataset)
                known = await client.hget(key, "dataset")
    finally:
        await client.aclose()
    if known != dataset.encode():
        raise ConfigurationError(
            f"consumer group {group!r} fills another dataset, and this one would never see what "
            "that has been given: leave --group out or choose another name; if the other one is "
            f"gone for good: hermes-queue groups remove {group}"
        )
