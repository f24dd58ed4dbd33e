"""Deleting results that everybody has read."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_queue.ledger.ledger import Ledger
from hermes_queue.settings import ResultSettings

_BATCH = 200
"""Entries per call: their bodies are deleted with them, and Redis does nothing else meanwhile."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one call did."""

    entries: int
    """Groups deleted from the stream, with their bodies."""
    abandoned: tuple[str, ...]
    """Consumer groups that are not durable, read nothing any more and were not waited for."""


def trim(ledger: Ledger, settings: ResultSettings, *, interval_s: float) -> Trimmed | None:
    """Delete up to a batch of entries that every consumer group that counts has acknowledged.

    None when somebody in the fleet did it less than `interval_s` ago.

    Raises:
        RedisUnavailable, RedisFull: some of it may be done.
    """
    answer = ledger.call(
        "trim",
        ["results", "results:trimmed", "results:bytes"],
        [
            *(ledger.prefix, interval_s, settings.retention_s, settings.abandoned_after_s, _BATCH),
            *(settings.soft_max_groups, settings.soft_max_bytes),
        ],
    )
    if answer[0] < 0:
        return None
    return Trimmed(int(answer[0]), tuple(name.decode() for name in answer[1:]))
