"""The lag of a consumer group, and rewinding it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import connect, explained, redis_url
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
    return await asyncio.to_thread(_consumer_lag, group, url)


def _consumer_lag(group: str, url: str | None) -> Lag:
    with _results(url) as (client, stream):
        return lag_of(client, stream, consumer_group_info(client, stream, group))


def lag_of(
    client: Any,
    stream: str,
    group: Mapping[str, Any],
    *,
    at_most: int | None = None,
    now: float | None = None,
) -> Lag:
    """How far behind a consumer group is.

    Not what Redis 7 calls `lag`, which is wrong after entries were trimmed that the group had not
    been given. Entries are counted instead, from the group's place in both directions at once: the
    cost is that of the shorter one, since how many there are in all is known.

    Args:
        client: blocking, of bytes.
        stream: its key, prefix included.
        group: what XINFO GROUPS has of it.
        at_most: count no further.
        now: Unix seconds by Redis' clock; None = this host's clock.

    Raises:
        redis.RedisError: as it comes.
    """
    place = group["last-delivered-id"].decode()
    waiting = [entry_id for entry_id, _ in client.xrange(stream, min=f"({place}", count=1)]
    pending = client.xpending(stream, group["name"])
    if pending["pending"]:
        waiting.append(pending["min"])
    born = [int(entry_id.partition(b"-")[0]) / 1000 for entry_id in waiting]
    age_s = max(0.0, (now or time.time()) - min(born)) if born else None
    return Lag(_count_after(client, stream, place, at_most), int(pending["pending"]), age_s)


def _count_after(client: Any, stream: str, place: str, at_most: int | None) -> int:
    before, after, first, last = 0, 0, place, f"({place}"
    while at_most is None or after < at_most:
        page = client.xrange(stream, min=last, count=_PAGE)
        after += len(page)
        if len(page) < _PAGE:
            return after
        last = f"({page[-1][0].decode()}"
        page = client.xrevrange(stream, max=first, count=_PAGE)
        before += len(page)
        if len(page) < _PAGE:
            return int(client.xlen(stream)) - before
        first = f"({page[-1][0].decode()}"
    return after


async def rewind(group: str, start: str | float | datetime, *, url: str | None = None) -> None:
    """Make a consumer group read again from `start`, which takes the same values as in `consume`.

    Trimmed groups are no longer in the stream; `replay` reads them from the archive.

    Raises:
        ConfigurationError: there is no such group.
        ValueError: `start` is not a position in the stream.
        RedisUnavailable: Redis does not answer.
    """
    await asyncio.to_thread(_rewind, group, stream_id(start), url)


def _rewind(group: str, place: str, url: str | None) -> None:
    with _results(url) as (client, stream):
        consumer_group_info(client, stream, group)
        client.xgroup_setid(stream, group, place)


@contextmanager
def _results(url: str | None) -> Iterator[tuple[Any, str]]:
    """A blocking client and the key of the results stream."""
    settings = RedisSettings()
    client: Any = connect(settings, url)
    try:
        with explained(redis_url(settings, url)):
            yield client, settings.prefix + STREAM
    finally:
        client.close()


def consumer_group_info(client: Any, stream: str, name: str) -> Mapping[str, Any]:
    """The entry of a consumer group in XINFO GROUPS; `client` is blocking and returns bytes.

    Raises:
        ConfigurationError: there is no such group.
    """
    for found in client.xinfo_groups(stream) if client.exists(stream) else ():
        if found["name"] == name.encode():
            info: Mapping[str, Any] = found
            return info
    raise ConfigurationError(f"there is no consumer group {name!r} in this Redis")
