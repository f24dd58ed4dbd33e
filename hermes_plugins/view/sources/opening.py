"""The sources that a command line names, and the file of their index."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from hermes_plugins.view.sources.archive import ArchiveSource
from hermes_plugins.view.sources.base import RecordSource
from hermes_plugins.view.sources.jsonl import JsonlSource
from hermes_plugins.view.sources.parquet import ParquetSource
from hermes_plugins.view.sources.places import no_source
from hermes_plugins.view.sources.stream import StreamSource
from hermes_queue.errors import ConfigurationError
from hermes_queue.settings import ArchiveSettings, PathSettings


def open_sources(
    paths: Sequence[Path] = (), *, redis: bool | None = None, url: str | None = None
) -> list[RecordSource]:
    """The sources to show.

    Args:
        paths: directories of an archive or of Parquet shards, and files of JSON lines.
        redis: whether to read from Redis, and from the archive `HERMES_QUEUE_ARCHIVE_DIRECTORY`;
            None = only if there are no `paths`.
        url: Redis; None = `HERMES_QUEUE_REDIS_URL`.

    Raises:
        ConfigurationError: a path is none of these, or a library is missing.
        RedisUnavailable: Redis does not answer.
    """
    found = [_of_path(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    if redis or (redis is None and not paths):
        archive = ArchiveSource(ArchiveSettings().directory)
        found = [StreamSource(url), *found]
        if archive.name not in [source.name for source in found]:
            found.append(archive)
    return found


def index_path(sources: Sequence[RecordSource]) -> Path:
    """Where the index of these sources is kept: below `view` in the cache directory."""
    names = "\n".join(sorted(source.name for source in sources))
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    return PathSettings().cache / "view" / f"{digest}.sqlite"


def _of_path(path: Path) -> RecordSource:
    if path.is_file():
        return JsonlSource(path)
    if not path.is_dir():
        raise ConfigurationError(no_source(path))
    if any(path.glob("*/*.groups")):
        return ArchiveSource(path)
    if any(path.rglob("*.parquet")):
        return ParquetSource(path)
    lines = next(path.glob("*.jsonl"), None)
    name_them = f"; name its JSONL files: {path}/*.jsonl" if lines else ""
    raise ConfigurationError(
        f"{path}: holds neither groups of an archive (RUN/*.groups) nor Parquet shards{name_them}"
    )
