"""How far behind a consumer group is, and setting it back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import connect_async, explained, redis_url
from hermes_queue.results.filters import stream_id
from hermes_queue.results.reader import STREAM
from hermes_queue.settings import RedisSettings

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Lag:
    """What of the stream a consumer group has not dealt with, as of now."""

    behind: int
    """Entries it has not been given, those that its filter will pass over included."""
    pending: int
    """Given to a consumer and not acknowledged."""
    oldest_s: float | None
    """Age of the oldest of both; None when there is none."""


async def consumer_lag(group: str, *, url: str | None = None) -> Lag:
    """How far behind the consumer group is.

    Args:
        group: its name.
        url: Redis; default `HERMES_QUEUE_REDIS_URL`.

    Raises:
        ConfigurationError: there is no such group.
        RedisUnavailable: no answer.
    """
    settings = RedisSettings()
    client: Any = connect_async(settings, url)
    stream = settings.prefix + STREAM
    try:
        with explained(redis_url(settings, url)):
            found = await _group(client, stream, group)
            oldest = await client.xrange(
                stream, min=f"({found['last-delivered-id'].decode()}", count=1
            )
            waiting = [entry_id for entry_id, _ in oldest]
            pending = await client.xpending(stream, group)
            if pending["pending"]:
                waiting.append(pending["min"])
            # Not the `lag` that Redis 7 tells: it is off by what was deleted in between.
            behind = await _count_after(client, stream, found["last-delivered-id"])
    finally:
        await client.aclose()
    born = [int(entry_id.partition(b"-")[0]) / 1000 for entry_id in waiting]
    age_s = max(0.0, time.time() - min(born)) if born else None
    return Lag(behind, int(pending["pending"]), age_s)


async def rewind(group: str, start: str | float | datetime, *, url: str | None = None) -> None:
    """Let a consumer group read again from `start` on, as `consume` takes it.

    What is trimmed is gone from the stream; see `replay` for what the archive holds.

    Raises:
        ConfigurationError: there is no such group.
        ValueError: `start` is none.
        RedisUnavailable: no answer.
    """
    begin = stream_id(start)
    settings = RedisSettings()
    client: Any = connect_async(settings, url)
    stream = settings.prefix + STREAM
    try:
        with explained(redis_url(settings, url)):
            await _group(client, stream, group)
            await client.xgroup_setid(stream, group, begin)
    finally:
        await client.aclose()


async def _group(client: Any, stream: str, name: str) -> dict[str, Any]:
    groups = await client.xinfo_groups(stream) if await client.exists(stream) else []
    for found in groups:
        if found["name"] == name.encode():
            return dict(found)
    raise ConfigurationError(f"there is no consumer group {name!r} in this Redis")


async def _count_after(client: Any, stream: str, entry_id: bytes) -> int:
    count = 0
    while page := await client.xrange(stream, min=f"({entry_id.decode()}", count=_PAGE):
        count += len(page)
        entry_id = page[-1][0]
    return count
