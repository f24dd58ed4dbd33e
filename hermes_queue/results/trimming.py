"""Deletes results that every consumer group has read, or leaves out by its filter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import HermesQueueError, RedisFull, RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.reader import STREAM
from hermes_queue.results.stored import stored_group
from hermes_queue.settings import ResultSettings

_PAGE = 8
"""Entries read at once; bodies are in memory one group at a time."""
_BATCH = 200
"""Entries per script call, which deletes their bodies too and blocks Redis meanwhile."""
_FAILURES = 3
"""Failures in a row after which the archive is considered broken, rather than the groups."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of one call of `trim`."""

    entries: int
    """Groups deleted from the stream, with their bodies."""
    abandoned: tuple[str, ...]
    """Names of non-durable consumer groups that stopped reading; trimming did not wait for them."""


def trim(
    ledger: Ledger,
    settings: ResultSettings,
    *,
    interval_s: float,
    archive: ArchiveSink | None = None,
    refused: dict[str, str] | None = None,
) -> Trimmed | None:
    """Delete up to a batch of entries that every relevant consumer group has acknowledged.

    A group is not waited for where its filter leaves an entry out.

    None if a worker of the fleet did so less than `interval_s` ago.

    Args:
        ledger: whose results.
        settings: retention times and limits.
        interval_s: minimum time between two trims in the fleet.
        archive: receives the groups before they are deleted; groups that it refuses are not
            deleted.
        refused: entry id -> reason, for groups that the archive refused. Entries that it
            contains are skipped; entries refused in this call are added.

    Raises:
        RedisUnavailable, RedisFull: a part may be deleted.
        HermesQueueError: the archive took none of the groups; nothing was deleted.
    """
    refused = {} if refused is None else refused
    if archive is None:
        answer = _call(ledger, settings, interval_s)
        return answer and answer[0]
    planned = _call(ledger, settings, interval_s, only_name=True, keep=refused)
    if planned is None or not planned[1]:
        return planned and planned[0]
    archived = _archived(ledger, planned[1], archive, refused)
    if not archived:  # another worker has trimmed them all
        return planned[0]
    done = _call(ledger, settings, 0.0, these=archived)
    return done and done[0]


def _archived(
    ledger: Ledger, ids: Sequence[bytes], archive: ArchiveSink, refused: dict[str, str]
) -> list[bytes]:
    """Archive groups; those that fail are added to `refused`.

    Returns the ids of the archived entries. Raises the first failure if no group could be archived.
    """
    archived: list[bytes] = []
    failures, first = 0, None
    for entry_id, raw in _entries(ledger, ids):
        try:
            with explained(ledger.url):
                group = stored_group(ledger.client, ledger.prefix, raw)
                # Another worker may have trimmed the entry since we listed it. Then bodies may be
                # missing in what we just read, and that worker has archived the whole group.
                trimmed = not ledger.client.xrange(ledger.key(STREAM), min=entry_id, max=entry_id)
            if not trimmed:
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
            archived.append(entry_id)
            failures = 0
    if first is not None and not archived:
        raise first
    return archived


def _call(
    ledger: Ledger,
    settings: ResultSettings,
    interval_s: float,
    *,
    only_name: bool = False,
    keep: Collection[str] = (),
    these: Collection[bytes] = (),
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
        kept=keep,
        these=these,
    )
    if answer.entries < 0:
        return None
    abandoned = tuple(name.decode() for name in answer.abandoned)
    return Trimmed(0 if only_name else answer.entries, abandoned), answer.named


def _entries(ledger: Ledger, ids: Sequence[bytes]) -> Iterator[tuple[bytes, Any]]:
    client: Any = ledger.client
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        with explained(ledger.url):
            entries = client.xrange(ledger.key(STREAM), min=page[0], max=page[-1])
        yield from (entry for entry in entries if entry[0] in page)
