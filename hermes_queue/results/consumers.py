"""Consumer groups of the results stream, as Redis reports them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.results.consume import STREAM, remove_consumer_group
from hermes_queue.results.lag import consumer_group_info, lag_of


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
