"""Directories of Parquet shards, as the sinks `parquet` and `hf` write them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.raw import MAX_RECORD_BYTES, UnreadableRecord
from hermes_plugins.view.records.values import listing, mapping
from hermes_plugins.view.sources.base import Batch, FoundRecord, Mark, RecordGone
from hermes_plugins.view.sources.places import source_name
from hermes_queue.sinks.datasets.arrow_rows import arrow

_SUFFIX = ".parquet"
_BATCH_ROWS = 64
_ROW_GROUP_BYTES = 1 << 30
"""Unpacked size of a row group above which it is not read: readers load it whole."""
_SAME = ("trajectory_id", "run_id", "group_id", "sample_index", "group_size", "env", "instance_id")
_OUTCOME = ("attempt", "epoch", "status", "stop_reason", "score", "cost_usd", "created")
_COUNTS = ("attempted", "schema_valid", "ok", "error")
_USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens")
_FAILURE = ("cause", "stage", "type", "message")
_JSON = ("tools", "agent", "report", "events", "attempts", "provenance")
_TOKENS = "sequences"


class ParquetSource:
    """The shards below one directory, each of them complete. Links are not followed.

    Raises:
        ConfigurationError: pyarrow is missing.
    """

    kind = "parquet"

    def __init__(self, directory: Path) -> None:
        arrow()
        self._directory = directory.resolve()
        self.title = self._directory.name
        self.name = source_name(self.kind, self._directory)
        self.problems: list[str] = []
        self._lock = threading.Lock()

    def scan(self, marks: Mapping[str, Mark | None]) -> Iterator[Batch]:
        """See `RecordSource.scan`. A shard whose name, size and time are known is not opened."""
        self.problems = []
        files = self._files()
        for name in marks.keys() - files.keys():
            yield Batch(name, removed=True)
        for name in sorted(files, reverse=True):
            state = files[name]
            mark: Mark = {"size": state.st_size, "time_ns": state.st_mtime_ns, "groups": None}
            if marks.get(name) == mark:
                continue
            try:
                yield from self._scan(name, marks.get(name), mark)
            except Exception as error:  # noqa: BLE001 - whatever pyarrow makes of a damaged file
                self._note(name, error)

    def read(self, location: Location) -> Mapping[str, Any]:
        """See `RecordSource.read`."""
        from pyarrow.parquet import ParquetFile

        path = self._directory / location.file
        if not path.resolve().is_relative_to(self._directory) or path.is_symlink():
            raise RecordGone(f"{location.file} is outside the directory")
        try:
            with ParquetFile(path) as file:
                return self._row(file, location.offset)
        except FileNotFoundError as error:
            raise RecordGone(f"{location.file} was removed") from error
        except (RecordGone, UnreadableRecord):
            raise
        except Exception as error:
            raise UnreadableRecord(f"{location.file}: {_short(error)}") from error

    def close(self) -> None:
        """See `RecordSource.close`."""

    def _files(self) -> dict[str, os.stat_result]:
        found: dict[str, os.stat_result] = {}
        try:
            for folder, folders, names in os.walk(self._directory):
                folders[:] = [name for name in folders if not name.startswith(".")]
                for name in names:
                    path = Path(folder, name)
                    if name.endswith(_SUFFIX) and path.is_file() and not path.is_symlink():
                        found[str(path.relative_to(self._directory))] = path.stat()
        except OSError as error:
            self._note(self.title, error)
        return found

    def _scan(self, name: str, known: Mark | None, mark: Mark) -> Iterator[Batch]:
        """The row groups of a shard; the mark counts those that have been read."""
        from pyarrow.parquet import ParquetFile

        done = known.get("groups") if known and {**known, "groups": None} == mark else None
        with ParquetFile(self._directory / name) as file:
            if not isinstance(done, int):
                done = 0
                yield Batch(name, mark={**mark, "groups": 0}, begins=True)
            columns = [column for column in file.schema_arrow.names if column != _TOKENS]
            sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
            for group in range(done, file.num_row_groups):
                number = sum(sizes[:group])
                if file.metadata.row_group(group).total_byte_size > _ROW_GROUP_BYTES:
                    place = Location(self.name, name, number)
                    found = [
                        FoundRecord(place, None, f"{sizes[group]} rows: too large a row group")
                    ]
                else:
                    found = self._group(name, file, group, number, columns)
                yield Batch(name, found, {**mark, "groups": group + 1})
        yield Batch(name, mark=mark, ends=True)

    def _group(
        self, name: str, file: Any, group: int, number: int, columns: list[str]
    ) -> list[FoundRecord]:
        found: list[FoundRecord] = []
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
            for row in batch.to_pylist():
                found.append(self._found(name, number + len(found), row))
        return found

    def _found(self, name: str, number: int, row: Mapping[str, Any]) -> FoundRecord:
        place = Location(self.name, name, number)
        return FoundRecord(place, record_of_columns(row), bytes=0)

    def _row(self, file: Any, number: int) -> Mapping[str, Any]:
        begin = 0
        for group in range(file.num_row_groups):
            facts = file.metadata.row_group(group)
            if number < begin + facts.num_rows:
                if facts.total_byte_size > _ROW_GROUP_BYTES:
                    raise UnreadableRecord("the row group is too large")
                with self._lock:  # of the memory that a whole row group takes
                    table = file.read_row_group(group).slice(number - begin, 1)
                    if table.nbytes > MAX_RECORD_BYTES:
                        raise UnreadableRecord(f"{table.nbytes} bytes")
                    return record_of_columns(table.to_pylist()[0])
            begin += facts.num_rows
        raise RecordGone("the shard has fewer rows by now")

    def _note(self, name: str, error: Exception) -> None:
        self.problems.append(f"{name}: cannot be read: {_short(error)}")


def record_of_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record from the columns of a row, as far as there are such columns."""
    found = {name: row[name] for name in (*_SAME, *_OUTCOME) if row.get(name) is not None}
    found |= {name: _parsed(row[name]) for name in _JSON if row.get(name) is not None}
    failure = {name: row.get(f"failure_{name}") for name in _FAILURE}
    found["failure"] = failure if failure["cause"] else None
    found["usage"] = {name: row.get(name) or 0 for name in _USAGE}
    found["tool_calls"] = {name: row.get(f"tool_calls_{name}") or 0 for name in _COUNTS}
    found["stage_seconds"] = _named(row.get("stage_seconds"), "seconds")
    found["rewards"] = _named(row.get("rewards"), "value")
    found["messages"] = [_message(each) for each in listing(row.get("messages"))]
    found["turns"] = [_turn(each) for each in listing(row.get("turns"))]
    versions = [turn.get("policy_version") for turn in found["turns"]]
    known = [version for version in versions if version]
    if known:
        found["policy_oldest"], found["policy_newest"] = known[0], known[-1]
    if row.get(_TOKENS) is not None:
        found[_TOKENS] = row[_TOKENS]
    return found


def _message(value: Any) -> dict[str, Any]:
    message = dict(mapping(value))
    message["tool_calls"] = [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {"name": call.get("name"), "arguments": call.get("arguments")},
        }
        for call in map(mapping, listing(message.get("tool_calls")))
    ]
    return message


def _turn(value: Any) -> dict[str, Any]:
    turn = dict(mapping(value))
    names = ("prompt_tokens", "completion_tokens")
    turn["usage"] = {name: turn.pop(name, 0) for name in names}
    return turn


def _named(value: object, column: str) -> dict[str, Any]:
    pairs = map(mapping, listing(value))
    return {pair["name"]: pair.get(column) for pair in pairs if isinstance(pair.get("name"), str)}


def _parsed(value: object) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:200]
