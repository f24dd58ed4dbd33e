"""Binds a consumer group to one dataset, so that two sinks cannot silently split a run."""

from __future__ import annotations

from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import connect_async, explained, redis_url
from hermes_queue.results.reader import options_key
from hermes_queue.settings import RedisSettings


async def claim_consumer_group(group: str, dataset: str) -> None:
    """Bind the consumer group to the dataset, or check that it is bound to it.

    Args:
        group: name of the group, which need not exist yet.
        dataset: permanent id of the dataset.

    Raises:
        ConfigurationError: the group belongs to another dataset.
        RedisUnavailable: Redis does not answer.
    """
    settings = RedisSettings()
    client: Any = connect_async(settings)
    key = options_key(settings.prefix, group)
    try:
        with explained(redis_url(settings)):
            known = await client.hget(key, "dataset")
            if known is None:  # a full Redis refuses writes, and we free it
                await client.hsetnx(key, "dataset", dataset)
                known = await client.hget(key, "dataset")
    finally:
        await client.aclose()
    if known != dataset.encode():
        raise ConfigurationError(
            f"consumer group {group!r} fills another dataset, so this one would miss the "
            "groups delivered to that: omit --group or choose another name; if the other dataset "
            f"no longer exists: hermes-queue groups remove {group}"
        )
