"""The last log lines of workers, so that a dead letter can show them after the worker's death."""

from __future__ import annotations

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

LOG_TTL_S = 86400
"""How long a worker's last lines outlive it: until the jobs that died with it have ended."""


def keep_log(ledger: Ledger, owner: str, text: str) -> None:
    """Store the last lines of a worker, replacing earlier ones.

    Raises:
        RedisUnavailable, RedisFull: the earlier ones may still be stored.
    """
    with explained(ledger.url):
        ledger.client.set(ledger.key(f"log:{owner}"), text, ex=LOG_TTL_S)
