"""The position of a consumer group in the results stream."""

from __future__ import annotations

from typing import Any, TypeAlias

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.results.reader import STREAM

EntryId: TypeAlias = tuple[int, int]
"""A stream entry's id: milliseconds and sequence number, ordered as the stream is."""


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
