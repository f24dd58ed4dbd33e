"""Deleting results that everybody has read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_queue.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.reader import STREAM
from hermes_queue.settings import ResultSettings
from hermes_queue.stored import StoredGroup, stored_group

_PAGE = 8
"""Groups whose bodies are in memory at once on their way to the archive."""
_BATCH = 200
"""Entries per call: their bodies are deleted with them, and Redis does nothing else meanwhile."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one call did."""

    entries: int
    """Groups deleted from the stream, with their bodies."""
    abandoned: tuple[str, ...]
    """Consumer groups that are not durable, read nothing any more and were not waited for."""


class Archive(Protocol):
    """Where results go before they are deleted."""

    def store(self, groups: Iterable[StoredGroup]) -> None:
        """Keep the groups; they are durable on return.

        Raises:
            HermesQueueError: at least one was not kept.
        """
        ...


def trim(
    ledger: Ledger,
    settings: ResultSettings,
    *,
    interval_s: float,
    archive: Archive | None = None,
) -> Trimmed | None:
    """Delete up to a batch of entries that every consumer group that counts has acknowledged.

    None when somebody in the fleet did it less than `interval_s` ago.

    Args:
        ledger: whose results.
        settings: how long to keep what, and how much.
        interval_s: least time between two trims of the fleet.
        archive: takes what is deleted, before it is. If it cannot, nothing is deleted.

    Raises:
        RedisUnavailable, RedisFull: some of it may be done.
        HermesQueueError: the archive failed; nothing was deleted.
    """
    if archive is None:
        answer = _call(ledger, settings, interval_s)
        return answer and answer[0]
    planned = _call(ledger, settings, interval_s, only_name=True)
    if planned is None or not planned[1]:
        return planned and planned[0]
    archive.store(_read(ledger, planned[1]))
    done = _call(ledger, settings, 0.0, newest=planned[1][-1])
    return done and done[0]


def _call(
    ledger: Ledger,
    settings: ResultSettings,
    interval_s: float,
    *,
    only_name: bool = False,
    newest: bytes = b"",
) -> tuple[Trimmed, list[bytes]] | None:
    count, abandoned, ids = ledger.call(
        "trim",
        ["results", "results:trimmed", "results:bytes"],
        [
            *(ledger.prefix, interval_s, settings.retention_s, settings.abandoned_after_s, _BATCH),
            *(settings.soft_max_groups, settings.soft_max_bytes, "1" if only_name else "", newest),
        ],
    )
    if count < 0:
        return None
    names = tuple(name.decode() for name in abandoned)
    return Trimmed(0 if only_name else int(count), names), ids


def _read(ledger: Ledger, ids: Sequence[bytes]) -> Iterator[StoredGroup]:
    client: Any = ledger.client
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        with explained(ledger.url):
            entries = client.xrange(ledger.key(STREAM), min=page[0], max=page[-1])
            for entry_id, raw in entries:
                group = stored_group(client, ledger.prefix, raw)
                # Trimmed by another worker meanwhile: it has archived the group whole.
                if client.xrange(ledger.key(STREAM), min=entry_id, max=entry_id):
                    yield group
