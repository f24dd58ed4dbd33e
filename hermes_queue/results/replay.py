"""Groups that were finished before, from the stream and the archive, without a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from hermes_queue.keyspace.connection import connect, explained, redis_url
from hermes_queue.models import TrajectoryGroup
from hermes_queue.results.archive import read_archive
from hermes_queue.results.filters import GroupFilter, unix_s
from hermes_queue.results.reader import STREAM
from hermes_queue.results.stored import BodyMissing, StoredGroup, stored_group
from hermes_queue.settings import ArchiveSettings, RedisSettings

_PAGE = 16


def replay(
    *,
    run: str | None = None,
    env: str | None = None,
    complete: bool = False,
    min_mean: float | None = None,
    max_mean: float | None = None,
    min_std: float | None = None,
    since: float | datetime | None = None,
    url: str | None = None,
    archive: Path | None = None,
    stream: bool = True,
    on_missing: Callable[[BodyMissing], None] | None = None,
) -> Iterator[TrajectoryGroup]:
    """Yield what is finished by now, each group once, and end.

    Nothing is acknowledged and no consumer group is made, so it disturbs nobody.

    Args:
        run: only the run of this id; likewise `env`, `complete`, `min_mean`, `max_mean`,
            `min_std` as in `consume`.
        env: see above.
        complete: see above.
        min_mean: see above.
        max_mean: see above.
        min_std: see above.
        since: only groups finished at this time (aware datetime or Unix seconds) or later.
        url: Redis; default `HERMES_QUEUE_REDIS_URL`.
        archive: directory of the archive; default `HERMES_QUEUE_ARCHIVE_DIRECTORY`.
        stream: whether to look into Redis at all.
        on_missing: is told of a group whose records are gone, which is then passed over.

    Raises:
        RedisUnavailable, StoreUnavailable: no answer.
        SchemaTooNew: a newer hermes-queue wrote a group.
        BodyMissing: a member's record is gone or unreadable, and there is no `on_missing`.
        ConfigurationError: a file of the archive is damaged.
        ValueError: `since` has no time zone.
    """
    wanted = GroupFilter(run or None, env or None, complete or None, min_mean, max_mean, min_std)
    begin = unix_s(since) if since else 0.0
    seen: set[str] = set()
    for stored in _stored(run, url, archive or ArchiveSettings().directory, stream, seen):
        fields = stored.fields
        if float(fields["finished"]) >= begin and wanted.takes(fields):
            try:
                yield stored.group()
            except BodyMissing as error:
                if on_missing is None:
                    raise
                on_missing(error)


def _stored(
    run_id: str | None, url: str | None, archive: Path, stream: bool, seen: set[str]
) -> Iterator[StoredGroup]:
    """Archive, stream, and what went from one to the other meanwhile; each group once."""
    known: dict[Path, int] = {}
    sources: list[Iterator[StoredGroup]] = [read_archive(archive, run_id, known=known)]
    if stream:
        sources.append(_streamed(url))
        sources.append(read_archive(archive, run_id, known=known))
    for source in sources:
        for stored in source:
            if stored.fields["group_id"] not in seen:
                seen.add(stored.fields["group_id"])
                yield stored


def _streamed(url: str | None) -> Iterator[StoredGroup]:
    settings = RedisSettings()
    target = redis_url(settings, url)
    stream = settings.prefix + STREAM
    last = b"-"
    with closing(connect(settings, url)) as opened:
        client: Any = opened
        while True:
            with explained(target):
                entries = client.xrange(stream, min=last, count=_PAGE)
            if not entries:
                return
            for entry_id, raw in entries:
                with explained(target):
                    stored = stored_group(client, settings.prefix, raw)
                    # Trimmed since we asked: the archive has it, and there it comes whole.
                    gone = not client.xrange(stream, min=entry_id, max=entry_id)
                if not gone:
                    yield stored
            last = b"(" + entries[-1][0]
