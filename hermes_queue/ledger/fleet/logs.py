"""What workers logged last, so that a dead letter can show it when its worker cannot."""

from __future__ import annotations

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

LOG_TTL_S = 86400
"""How long a worker's last lines outlive it: until the jobs that died with it are buried."""


def keep_log(ledger: Ledger, owner: str, text: str) -> None:
    """Store the last lines of a worker in place of those stored before.

    Raises:
        RedisUnavailable, RedisFull: the ones before may still be there.
    """
    with explained(ledger.url):
        ledger.client.set(ledger.key(f"log:{owner}"), text, ex=LOG_TTL_S)
