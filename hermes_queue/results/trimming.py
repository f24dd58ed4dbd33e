"""Deleting results that everybody has read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_queue.errors import HermesQueueError, RedisFull, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.results.reader import STREAM
from hermes_queue.results.stored import StoredGroup, stored_group
from hermes_queue.settings import ResultSettings

_PAGE = 8
"""Entries that are read at once; bodies are in memory one group at a time."""
_BATCH = 200
"""Entries per call: their bodies are deleted with them, and Redis does nothing else meanwhile."""
_FAILURES = 3
"""Groups in a row after which the archive, rather than each group, is taken to be at fault."""


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
    refused: dict[str, str] | None = None,
) -> Trimmed | None:
    """Delete up to a batch of entries that every consumer group that counts has acknowledged.

    None when somebody in the fleet did it less than `interval_s` ago.

    Args:
        ledger: whose results.
        settings: how long to keep what, and how much.
        interval_s: least time between two trims of the fleet.
        archive: takes what is deleted, before it is. What it cannot take is not deleted.
        refused: entries that it could not take before, which are passed over; those of this call
            are added, with the group and the reason.

    Raises:
        RedisUnavailable, RedisFull: some of it may be done.
        HermesQueueError: the archive took none of what it was given; nothing was deleted.
    """
    refused = {} if refused is None else refused
    if archive is None:
        answer = _call(ledger, settings, interval_s)
        return answer and answer[0]
    planned = _call(ledger, settings, interval_s, only_name=True, keep=refused)
    if planned is None or not planned[1]:
        return planned and planned[0]
    newest = _archived(ledger, planned[1], archive, refused)
    if not newest:  # another worker has trimmed them all meanwhile
        return planned[0]
    done = _call(ledger, settings, 0.0, newest=newest, keep=refused)
    return done and done[0]


def _archived(
    ledger: Ledger, ids: Sequence[bytes], archive: Archive, refused: dict[str, str]
) -> bytes:
    """Store groups up to the entry that is returned, but for those that are added to `refused`.

    Raises:
        Exception: what the first one failed of, when none could be stored.
    """
    newest, failures, first = b"", 0, None
    for entry_id, raw in _entries(ledger, ids):
        try:
            with explained(ledger.url):
                group = stored_group(ledger.client, ledger.prefix, raw)
                # Trimmed by another worker meanwhile: it has archived the group whole.
                gone = not ledger.client.xrange(ledger.key(STREAM), min=entry_id, max=entry_id)
            if not gone:
                archive.store([group])
        except (RedisUnavailable, RedisFull):
            raise
        except (HermesQueueError, OSError, ValueError, LookupError, TypeError) as error:
            group_id = raw.get(b"group_id", b"?").decode(errors="replace")
            refused[entry_id.decode()] = f"group {group_id}: {error}"
            first, failures = first or error, failures + 1
            if failures == _FAILURES:
                break
        else:
            newest, failures = entry_id, 0
    if first is not None and not newest:
        raise first
    return newest


def _call(
    ledger: Ledger,
    settings: ResultSettings,
    interval_s: float,
    *,
    only_name: bool = False,
    newest: bytes = b"",
    keep: Collection[str] = (),
) -> tuple[Trimmed, list[bytes]] | None:
    answer = ledger.call(
        "trim",
        interval_s=interval_s,
        retention_s=settings.retention_s,
        abandoned_after_s=settings.abandoned_after_s,
        most=_BATCH,
        soft_max_groups=settings.soft_max_groups,
        soft_max_bytes=settings.soft_max_bytes,
        only_name=only_name,
        newest=newest,
        kept=keep,
    )
    if answer.entries < 0:
        return None
    abandoned = tuple(name.decode() for name in answer.abandoned)
    return Trimmed(0 if only_name else answer.entries, abandoned), answer.named


def _entries(ledger: Ledger, ids: Sequence[bytes]) -> Iterator[tuple[bytes, Any]]:
    """Those of `ids` that are still in the stream, with their fields."""
    client: Any = ledger.client
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        with explained(ledger.url):
            entries = client.xrange(ledger.key(STREAM), min=page[0], max=page[-1])
        yield from (entry for entry in entries if entry[0] in page)
