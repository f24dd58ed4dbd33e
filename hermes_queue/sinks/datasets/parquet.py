"""A directory of Parquet shards that holds each id once, even if the process is killed.

A trajectory for which `write` has returned is in a shard or in the journal. The journal
(`.journal`) is fsynced before `write` returns, and becomes a shard when it is long or old
enough, or the sink is closed. A shard is renamed into place in one step, and only then is the
journal emptied. When the directory is opened again, rows of the journal whose ids are in a shard
are skipped.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from hermes_queue.disk import locked as files
from hermes_queue.disk.frames import FrameLog
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.models import ScoredTrajectory
from hermes_queue.sinks.base import Closing, Format, SinkOptions
from hermes_queue.sinks.datasets import arrow_rows

logger = logging.getLogger(__name__)

ROW_GROUP_ROWS = 256
"""Readers load one row group at a time into memory."""

_SHARD = re.compile(r"^train-(\d{5,})\.parquet$")
_MARK = b"hermes_queue.rows"
_MAGIC = b"hermes-queue arrow rows %d\n" % arrow_rows.ROWS_VERSION


class ShardOptions(SinkOptions):
    """Limits at which a shard ends."""

    shard_rows: int = Field(default=2000, ge=1, description="End a shard at about this many rows.")
    shard_mb: int = Field(default=256, ge=1, description="End a shard at about this size in MiB.")
    shard_s: float = Field(
        default=600.0, gt=0, description="End a shard this many seconds after its first row."
    )


class ParquetSink(Closing):
    """Writes `train-00000.parquet`, `train-00001.parquet`, ... into a directory.

    Args:
        directory: created if missing.
        limits: when a shard ends; by size, the journal's counts, which is compressed as well, and
            by age, it ends at the next `write`.

    Raises:
        ConfigurationError: pyarrow is missing; the directory cannot be written, has another
            writer, or holds foreign Parquet files (which stay unchanged).
    """

    def __init__(self, directory: Path, limits: ShardOptions | None = None) -> None:
        arrow_rows.arrow()
        self.path = directory
        self.held: dict[str, str] = {}
        """See `DatasetSink.held`."""
        self._limits = limits or ShardOptions()
        self._sharded: frozenset[str] = frozenset()
        self._rows = 0
        """Rows in the journal that are in no shard."""
        self._since = time.monotonic()
        """Time of the journal's first row, or of opening the directory."""
        if directory.exists() and not directory.is_dir():
            raise ConfigurationError(f"{directory}: is a file; choose a directory for the shards")
        self._journal = FrameLog(directory / ".journal", _MAGIC)
        try:
            self._open()
        except BaseException:
            self._journal.close()
            raise

    @property
    def shards(self) -> list[Path]:
        """The finished shards, in order."""
        return sorted(p for p in self.path.iterdir() if _SHARD.match(p.name))

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """See `Sink.write`."""
        new = {t.trajectory_id: t for t in trajectories if t.trajectory_id not in self.held}
        if new:
            self._journal.append([_frame(arrow_rows.batch(list(new.values())))])
            self.held.update((t.trajectory_id, t.instance_id) for t in new.values())
            self._since = self._since if self._rows else time.monotonic()
            self._rows += len(new)
        if self._is_due():
            try:
                self.finish_shard()
            except HermesQueueError as error:
                # The rows stay in the journal; the next write tries again.
                logger.warning("%s", error, extra={"action": "shard_failed"})
        return len(new)

    def finish_shard(self) -> Path | None:
        """Write the journal's rows as a shard; None if there are none.

        Raises:
            HermesQueueError: the disk is full; everything stays in the journal.
        """
        if not self._rows:
            return None
        last = [int(m[1]) for p in self.shards if (m := _SHARD.match(p.name))]
        path = self.path / f"train-{max(last, default=-1) + 1:05d}.parquet"
        count, self._rows = self._rows, 0
        try:
            with files.replacing(path) as draft:
                self._write_shard(draft)
        except BaseException:
            if not path.exists():  # otherwise only the sync of its name failed
                self._rows = count
                raise
            self._sharded = frozenset(self.held)
            raise
        self._sharded = frozenset(self.held)  # in case emptying the journal fails
        self._journal.clear()
        logger.info("%s: %d rows", path, count, extra={"action": "shard", "path": str(path)})
        return path

    def _write_shard(self, path: Path) -> None:
        """Write one row group at a time, because a shard need not fit into memory."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = arrow_rows.schema().with_metadata({_MARK: str(arrow_rows.ROWS_VERSION).encode()})
        waiting: list[Any] = []
        options = {"compression": "zstd", "use_dictionary": list(arrow_rows.REPETITIVE)}
        with pq.ParquetWriter(path, schema, **options) as writer:
            for frame in self._journal:
                waiting.append(self._without_sharded(_batch(frame)))
                if sum(rows.num_rows for rows in waiting) >= ROW_GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting).cast(schema))
                    waiting.clear()
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting).cast(schema))

    def close(self) -> None:
        """Write the last shard and unlock the directory. Idempotent.

        Raises:
            HermesQueueError: the disk is full. The rows stay in the journal and become a shard
                when the directory is opened and closed again.
        """
        try:
            self.finish_shard()
        finally:
            self._rows = 0
            self._journal.close()

    def _is_due(self) -> bool:
        limits = self._limits
        return bool(self._rows) and (
            self._rows >= limits.shard_rows
            or self._journal.size_bytes >= limits.shard_mb << 20
            or time.monotonic() - self._since >= limits.shard_s
        )

    def _open(self) -> None:
        for draft in self.path.glob(".train-*.parquet.tmp"):
            draft.unlink()
        for shard in self.shards:
            self.held.update(_read_ids(shard))
        self._sharded = frozenset(self.held)
        for frame in self._journal:
            rows = self._without_sharded(_batch(frame))
            self.held.update(_ids(rows))
            self._rows += rows.num_rows
        if not self._rows:  # killed between writing a shard and emptying the journal
            self._journal.clear()

    def _without_sharded(self, rows: Any) -> Any:
        ids = rows.column("trajectory_id").to_pylist()
        return rows.filter(arrow_rows.arrow().array([i not in self._sharded for i in ids]))


def _frame(rows: Any) -> bytes:
    """A batch as a frame: an Arrow IPC stream of one batch."""
    pa = arrow_rows.arrow()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, arrow_rows.schema(), options=options) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _batch(frame: bytes) -> Any:
    pa = arrow_rows.arrow()
    with pa.ipc.open_stream(frame) as reader:
        return reader.read_next_batch()


def _ids(rows: Any) -> Iterable[tuple[str, str]]:
    columns = (rows.column(name).to_pylist() for name in ("trajectory_id", "instance_id"))
    return zip(*columns, strict=True)


def _read_ids(shard: Path) -> Iterable[tuple[str, str]]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(shard) as file:
            mark = (file.schema_arrow.metadata or {}).get(_MARK)
            if mark != str(arrow_rows.ROWS_VERSION).encode():
                raise ConfigurationError(
                    f"{shard}: was not written by this version of hermes-queue "
                    f"({json.dumps((mark or b'').decode())}); choose another --out"
                )
            return list(_ids(file.read(columns=["trajectory_id", "instance_id"])))
    except (OSError, arrow_rows.arrow().ArrowInvalid) as error:
        raise ConfigurationError(f"{shard}: cannot be read: {error}") from error


FORMAT = Format(
    help="Whole records as Parquet shards in the directory OUT (extra: parquet).",
    open=lambda out, options, choice: ParquetSink(out, options),
    keeps_failed=True,
    options=ShardOptions,
)
