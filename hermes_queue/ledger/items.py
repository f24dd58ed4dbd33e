"""Dataset rows that are too large to travel with their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_queue.bodies import codec
from hermes_queue.errors import EnvBug
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger
from hermes_queue.settings import ProducerSettings


def put_items(ledger: Ledger, items: Mapping[str, bytes]) -> None:
    """Store compressed rows at `item:{sha256}` for the lifetime of a run; equal rows share one key.

    Raises:
        RedisFull, RedisUnavailable: assume that nothing is stored.
    """
    if not items:
        return
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        for sha256, body in items.items():
            pipe.set(ledger.key(f"item:{sha256}"), body, ex=RUN_TTL_S)
        pipe.execute()


def get_item(ledger: Ledger, sha256: str) -> dict[str, Any] | None:
    """The row stored at `item:{sha256}`, or None if it is gone.

    Producers write these keys, so the value is limited and checked before it is unpacked.

    Raises:
        EnvBug: it is larger than `ProducerSettings.item_max_bytes`, or not the row of this hash.
    """
    max_bytes = ProducerSettings().item_max_bytes
    packed_max = max_bytes + max_bytes // 128 + 1024  # zstd's bound for incompressible data
    with explained(ledger.url):
        body: Any = ledger.client.getrange(ledger.key(f"item:{sha256}"), 0, packed_max)
    if not body:
        return None
    try:
        if len(body) > packed_max:
            raise ValueError(f"not an item: it is packed into more than {packed_max} bytes")
        return codec.decompress_item(body, max_bytes=max_bytes, sha256=sha256)
    except ValueError as error:
        raise EnvBug(
            f"item {sha256[:64]} cannot be read: {error} (HERMES_QUEUE_PRODUCER_ITEM_MAX_BYTES "
            "limits workers, too); enqueue its run under another id"
        ) from error
