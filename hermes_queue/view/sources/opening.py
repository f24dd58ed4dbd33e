"""The sources that a command line names, and the file of their index."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from hermes_queue.errors import ConfigurationError
from hermes_queue.settings import PathSettings
from hermes_queue.view.sources.base import RecordSource
from hermes_queue.view.sources.jsonl import JsonlSource


def open_sources(
    paths: Sequence[Path] = (), *, redis: bool | None = None, url: str | None = None
) -> list[RecordSource]:
    """The sources to show.

    Args:
        paths: directories of an archive or of Parquet shards, and files of JSON lines. None of
            them: Redis, and the archive `HERMES_QUEUE_ARCHIVE_DIRECTORY`.
        redis: whether to read from Redis; None = only if there are no `paths`.
        url: Redis; None = `HERMES_QUEUE_REDIS_URL`.

    Raises:
        ConfigurationError: a path is none of these, or a library is missing.
        RedisUnavailable: Redis does not answer.
    """
    return [_of_path(path) for path in paths]


def index_path(sources: Sequence[RecordSource]) -> Path:
    """Where the index of these sources is kept: below `view` in the cache directory."""
    names = "\n".join(source.name for source in sources)
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    return PathSettings().cache / "view" / f"{digest}.sqlite"


def _of_path(path: Path) -> RecordSource:
    if path.is_file():
        return JsonlSource(path)
    raise ConfigurationError(f"{path}: is neither a file of records nor a directory of them")
