"""Dataset rows that are too large to travel with their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_queue import codec
from hermes_queue.connection import explained
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger


def put_items(ledger: Ledger, items: Mapping[str, bytes]) -> None:
    """Store compressed rows at `item:{sha256}` for as long as a run; equal rows share one key.

    Raises:
        RedisFull, RedisUnavailable: nothing can be assumed stored.
    """
    if not items:
        return
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        for sha256, body in items.items():
            pipe.set(ledger.key(f"item:{sha256}"), body, ex=RUN_TTL_S)
        pipe.execute()


def get_item(ledger: Ledger, sha256: str) -> dict[str, Any] | None:
    """The row stored at `item:{sha256}`, or None when it is gone."""
    with explained(ledger.url):
        body: Any = ledger.client.get(ledger.key(f"item:{sha256}"))
    return None if body is None else codec.decompress_item(body)
