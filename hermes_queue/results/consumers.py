"""Consumer groups of the results stream, as Redis reports them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.results.consume import STREAM, remove_consumer_group

_PAGE = 1000


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
    if name not in {group.name for group in consumer_groups(ledger)}:
        raise ConfigurationError(f"there is no consumer group {name!r} in this Redis")
    with explained(ledger.url):
        remove_consumer_group(ledger.client, ledger.prefix, name)


def _described(ledger: Ledger, stream: str, raw: dict[str, Any]) -> ConsumerGroup:
    client: Any = ledger.client
    name = raw["name"].decode()
    made = client.hmget(ledger.key(f"consumer-group:{name}"), "durable", "filter")
    idle = [c["idle"] / 1000 for c in client.xinfo_consumers(stream, name)]
    return ConsumerGroup(
        name=name,
        durable=made[0] != b"0",
        filter=json.loads(made[1] or b"{}"),
        consumers=raw["consumers"],
        pending=raw["pending"],
        behind=behind(client, stream, raw),
        idle_s=min(idle) if idle else None,
    )


def behind(client: Any, stream: str, raw: Mapping[str, Any], *, at_most: int | None = None) -> int:
    """Number of entries of `stream` that a consumer group has not received yet.

    Redis 7 reports it unless entries were deleted in the middle; otherwise they are counted.

    Args:
        client: blocking client that returns bytes.
        stream: its key, prefix included.
        raw: the group's entry in XINFO GROUPS.
        at_most: stop counting at this number.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    if raw.get("lag") is not None:
        return int(raw["lag"])
    last, count = raw["last-delivered-id"].decode(), 0
    while at_most is None or count < at_most:
        page = client.xrange(stream, min=f"({last}", count=_PAGE)
        count += len(page)
        if len(page) < _PAGE:
            break
        last = page[-1][0].decode()
    return count
