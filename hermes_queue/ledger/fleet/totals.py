"""Totals that the ledger's scripts have counted over the life of the deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

Totals = Mapping[tuple[str, ...], float]
"""By (name, label, ...), e.g. ("trajectories", "gsm8k", "scored"); see `include/totals.lua`."""


def totals(ledger: Ledger) -> Totals:
    """All totals; they start at zero with an empty Redis. One round trip.

    Raises:
        RedisUnavailable: Redis does not answer.
    """
    with explained(ledger.url):
        raw: Any = ledger.client.hgetall(ledger.key("totals"))
    return {tuple(field.decode().split("|")): float(value) for field, value in raw.items()}
