"""Reads finished groups from the stream and the archive, without a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from hermes_queue.keyspace.connection import connect, explained, redis_url
from hermes_queue.models import TrajectoryGroup
from hermes_queue.results.archive import read_archive
from hermes_queue.results.evaluations import EvaluationGate
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
    allow_evaluation: bool = False,
) -> Iterator[TrajectoryGroup]:
    """Yield every group that is finished by now once, and end.

    Nothing is acknowledged and no consumer group is created, so other readers are not affected.

    Args:
        run: only groups of the run with this id.
        env: only groups of this env.
        complete: only groups of which every member was measured.
        min_mean: only groups whose mean score is at least this.
        max_mean: only groups whose mean score is at most this.
        min_std: only groups whose scores have at least this population standard deviation.
        since: only groups finished at or after this time (aware datetime or Unix seconds).
        url: Redis; default `HERMES_QUEUE_REDIS_URL`.
        archive: directory of the archive; default `HERMES_QUEUE_ARCHIVE_DIRECTORY`.
        stream: whether to read from Redis at all.
        on_missing: called with the error when the records of a group are gone; the group is then
            skipped.
        allow_evaluation: also groups of an evaluation, on which nothing may be trained.

    Raises:
        RedisUnavailable, StoreUnavailable: Redis or the object store does not answer.
        SchemaTooNew: a newer hermes-queue wrote a group.
        BodyMissing: a member's record is gone or unreadable, and `on_missing` is None.
        ConfigurationError: a file of the archive is damaged.
        ValueError: `since` has no time zone.
    """
    group_filter = GroupFilter(
        run or None, env or None, complete or None, min_mean, max_mean, min_std
    )
    begin = unix_s(since) if since else 0.0
    gate = EvaluationGate(allowed=allow_evaluation)
    seen: set[str] = set()
    for stored in _stored(run, url, archive or ArchiveSettings().directory, stream, seen):
        fields = stored.fields
        if float(fields["finished"]) >= begin and group_filter.takes(fields):
            try:
                group = stored.group()
            except BodyMissing as error:
                if on_missing is None:
                    raise
                on_missing(error)
                continue
            if not gate.refuses(group.group_id, group.members, group.extras):
                yield group


def _stored(
    run_id: str | None, url: str | None, archive: Path, stream: bool, seen: set[str]
) -> Iterator[StoredGroup]:
    """Yield groups from the archive and the stream, each once.

    The archive is read a second time because groups move there while the stream is read.
    """
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
    settings = RedisSettings.read()
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
                    # If the entry was trimmed between the two reads, its bodies may be incomplete
                    # here. The archive has the whole group, and it is read last.
                    trimmed = not client.xrange(stream, min=entry_id, max=entry_id)
                if not trimmed:
                    yield stored
            last = b"(" + entries[-1][0]
