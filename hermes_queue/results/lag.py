"""The lag of a consumer group, and rewinding it."""

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
    """Entries of the stream that a consumer group has not acknowledged."""

    behind: int
    """Entries not delivered to it yet, including those that its filter will skip."""
    pending: int
    """Entries delivered to a consumer and not acknowledged."""
    oldest_s: float | None
    """Age of the oldest of both, in seconds; None if there are none."""


async def consumer_lag(group: str, *, url: str | None = None) -> Lag:
    """The lag of a consumer group.

    Args:
        group: its name.
        url: Redis; default `HERMES_QUEUE_REDIS_URL`.

    Raises:
        ConfigurationError: there is no such group.
        RedisUnavailable: Redis does not answer.
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
            # Count entries: the `lag` that Redis 7 reports is wrong after entries were deleted.
            behind = await _count_after(client, stream, found["last-delivered-id"])
    finally:
        await client.aclose()
    born = [int(entry_id.partition(b"-")[0]) / 1000 for entry_id in waiting]
    age_s = max(0.0, time.time() - min(born)) if born else None
    return Lag(behind, int(pending["pending"]), age_s)


async def rewind(group: str, start: str | float | datetime, *, url: str | None = None) -> None:
    """Make a consumer group read again from `start`, which takes the same values as in `consume`.

    Trimmed groups are no longer in the stream; `replay` reads them from the archive.

    Raises:
        ConfigurationError: there is no such group.
        ValueError: `start` is not a position in the stream.
        RedisUnavailable: Redis does not answer.
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
