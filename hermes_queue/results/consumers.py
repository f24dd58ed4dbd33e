"""Consumer groups of the results stream: their state, lag and position."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import connect, explained, redis_url
from hermes_queue.results.consume import remove_consumer_group
from hermes_queue.results.filters import stream_id
from hermes_queue.results.reader import STREAM
from hermes_queue.settings import RedisSettings

if TYPE_CHECKING:
    from hermes_queue.ledger.ledger import Ledger

_PAGE = 1000

EntryId: TypeAlias = tuple[int, int]
"""A stream entry's id: milliseconds and sequence number, ordered as the stream is."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Entries of the stream that a consumer group has not acknowledged."""

    behind: int
    """Entries not delivered to it yet, including those that its filter will skip."""
    pending: int
    """Entries delivered to a consumer and not acknowledged."""
    oldest_s: float | None
    """Age of the oldest of both, in seconds; None if there are none."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The state of one consumer group."""

    name: str
    durable: bool
    """Whether results are kept for it without a time limit."""
    filter: dict[str, str]
    consumers: int
    pending: int
    """Entries delivered and not acknowledged."""
    behind: int
    """Entries of the stream that were not delivered to it yet."""
    idle_s: float | None
    """Seconds since one of its consumers last read; None without consumers."""


def consumer_groups(ledger: Ledger) -> list[ConsumerGroup]:
    """All consumer groups, by name."""
    client: Any = ledger.client
    stream = ledger.key(STREAM)
    with explained(ledger.url):
        if not client.exists(stream):
            return []
        return [_described(ledger, stream, raw) for raw in client.xinfo_groups(stream)]


def forget_consumer_group(ledger: Ledger, name: str) -> None:
    """Remove a consumer group; results are no longer kept for it.

    Raises:
        ConfigurationError: there is no group of that name.
    """
    with explained(ledger.url):
        consumer_group_info(ledger.client, ledger.key(STREAM), name)
        remove_consumer_group(ledger.client, ledger.prefix, name)


def _described(ledger: Ledger, stream: str, raw: dict[str, Any]) -> ConsumerGroup:
    client: Any = ledger.client
    name = raw["name"].decode()
    made = client.hmget(ledger.key(f"consumer-group:{name}"), "durable", "filter")
    lag = lag_of(client, stream, raw)
    idle = [c["idle"] / 1000 for c in client.xinfo_consumers(stream, name)]
    return ConsumerGroup(
        name=name,
        durable=made[0] != b"0",
        filter=json.loads(made[1] or b"{}"),
        consumers=raw["consumers"],
        pending=lag.pending,
        behind=lag.behind,
        idle_s=min(idle) if idle else None,
    )


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
    settings = RedisSettings.read()
    with closing(connect(settings, url)) as client, explained(redis_url(settings, url)):
        yield client, settings.prefix + STREAM


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


def newest_entry(ledger: Ledger) -> EntryId:
    """Id of the last entry ever added to the stream; (0, 0) if there was none.

    Raises:
        RedisUnavailable: Redis does not answer.
    """
    client: Any = ledger.client
    stream = ledger.key(STREAM)
    with explained(ledger.url):
        if not client.exists(stream):
            return (0, 0)
        return _parsed(client.xinfo_stream(stream)["last-generated-id"])


def has_dealt_with(ledger: Ledger, group: str, entry: EntryId) -> bool:
    """Whether the consumer group has acknowledged everything up to `entry`.

    False if there is no such group.

    Raises:
        RedisUnavailable: Redis does not answer.
    """
    client: Any = ledger.client
    stream = ledger.key(STREAM)
    with explained(ledger.url):
        groups = client.xinfo_groups(stream) if client.exists(stream) else []
        read = [each for each in groups if each["name"] == group.encode()]
        if not read or _parsed(read[0]["last-delivered-id"]) < entry:
            return False
        pending = client.xpending(stream, group)
    return not pending["pending"] or _parsed(pending["min"]) > entry


def _parsed(entry_id: bytes) -> EntryId:
    milliseconds, _, number = entry_id.decode().partition("-")
    return int(milliseconds), int(number)
