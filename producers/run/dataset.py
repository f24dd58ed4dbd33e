"""Datasets: a bundled file, JSON lines, Parquet, or a name on Hugging Face.

Rows are read lazily. Every row knows its place, so that an error can name file and line.
"""

from __future__ import annotations

import gzip
import json
import random
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol, cast

from hermes_queue.errors import ConfigurationError, InputError

BUNDLED = "bundled"
_FORMATS = ".jsonl, .jsonl.gz or .parquet"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row and its place, e.g. `rows.jsonl:3`."""

    place: str
    data: dict[str, Any]


class Dataset(Protocol):
    """Rows that can be read repeatedly."""

    name: str

    def rows(self, seed: int | None = None) -> Iterator[SourceRow]:
        """All rows in the dataset's order, or shuffled in an order that depends only on `seed`.

        Raises:
            InputError: at the first row that cannot be read.
        """
        ...


def open_dataset(name: str, *, bundled: Path, split: str | None = None) -> Dataset:
    """Open the dataset that `--dataset name` refers to.

    Args:
        name: `bundled`, a path, or `OWNER/NAME[:CONFIG]` on Hugging Face.
        bundled: the file to open for the name `bundled`.
        split: split of a Hugging Face dataset; None means train. Files have no splits.

    Raises:
        InputError: the file or dataset does not exist, or its format is unknown.
        ConfigurationError: an extra is missing, or `split` was given for a file.
    """
    path = bundled if name == BUNDLED else Path(name).expanduser()
    if name != BUNDLED and not _looks_like_a_path(name) and not path.exists():
        return HubDataset(name, split or "train")
    if split is not None:
        raise ConfigurationError(
            f"--split {split}: {path} is a file; only Hugging Face datasets have splits"
        )
    if path.is_dir():
        raise InputError(f"{path}: is a directory; pass a {_FORMATS} file")
    if not path.exists():
        raise InputError(f"{path}: no such file; --dataset takes a path or a Hugging Face name")
    if path.suffix == ".parquet":
        return ParquetDataset(path)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return JsonlDataset(path)
    raise InputError(f"{path}: unknown format; --dataset reads {_FORMATS}")


def _looks_like_a_path(name: str) -> bool:
    suffixes = (".jsonl", ".json", ".gz", ".parquet", ".csv", ".txt", ".zst")
    return name.startswith((".", "/", "~")) or name.endswith(suffixes) or name.count("/") > 1


class JsonlDataset:
    """One JSON object per line; blank lines are skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def rows(self, seed: int | None = None) -> Iterator[SourceRow]:
        """See `Dataset.rows`."""
        if seed is not None:
            yield from self._shuffled(seed)
            return
        with self._open() as stream:
            for number, line in self._lines(stream):
                if line.strip():
                    yield self._parse(number, line)

    def _shuffled(self, seed: int) -> Iterator[SourceRow]:
        """Holds one offset per line in memory, not the rows."""
        with self._open() as packed, tempfile.TemporaryFile() as unpacked:
            stream = packed
            if self.path.suffix == ".gz":  # seeking back in gzip decompresses from the start
                unpacked.writelines(line for _, line in self._lines(packed))
                unpacked.seek(0)
                stream = unpacked
            starts: list[tuple[int, int]] = []
            offset = 0
            for number, line in self._lines(stream):
                if line.strip():
                    starts.append((number, offset))
                offset += len(line)
            random.Random(seed).shuffle(starts)  # noqa: S311 - an order, not a secret
            for number, start in starts:
                stream.seek(start)
                yield self._parse(number, stream.readline())

    def _open(self) -> IO[bytes]:
        try:
            if self.path.suffix == ".gz":
                return cast(IO[bytes], gzip.open(self.path, "rb"))
            return self.path.open("rb")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _lines(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """Numbered lines, including blank ones; errors of gzip become `InputError`."""
        number = 0
        try:
            for number, line in enumerate(stream, start=1):
                yield number, line
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                f"{self.path}:{number + 1}: the file is damaged or cut off ({error}); "
                "fetch or write it again"
            ) from error

    def _parse(self, number: int, line: bytes) -> SourceRow:
        place = f"{self.path}:{number}"
        try:
            data = json.loads(line.decode("utf-8-sig").rstrip("\r\n"))
        except UnicodeDecodeError as error:
            raise InputError(f"{place}: is not UTF-8: {error.reason}; save it as UTF-8") from error
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n"):
                raise InputError(
                    f"{place}: the last line is truncated (invalid JSON, and no newline after "
                    f"{len(line)} bytes); remove it or write the file again"
                ) from error
            raise InputError(
                f"{place}: is not valid JSON: {error}; every line must be one JSON object"
            ) from error
        if not isinstance(data, dict):
            raise InputError(f"{place}: is a {type(data).__name__}; every line must be an object")
        return SourceRow(place, data)


class ParquetDataset:
    """A Parquet file. Needs pyarrow, from the extra `parquet`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def rows(self, seed: int | None = None) -> Iterator[SourceRow]:
        """See `Dataset.rows`. Shuffled, the table is held in memory as Arrow."""
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as error:
            raise ConfigurationError(
                f"{self.path}: reading Parquet needs pyarrow: pip install 'hermes-queue[parquet]'"
            ) from error
        rows = self._rows(parquet, seed)
        while True:
            try:
                row = next(rows, None)
            except (OSError, ArrowException) as error:  # where it is damaged, at its end or within
                raise InputError(f"{self.path}: is not a readable Parquet file: {error}") from error
            if row is None:
                return
            yield row

    def _rows(self, parquet: Any, seed: int | None) -> Iterator[SourceRow]:
        with parquet.ParquetFile(self.path) as file:
            if seed is None:
                batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=256))
                numbered: Iterator[tuple[int, Any]] = enumerate(chain.from_iterable(batches))
            else:
                table = file.read()
                order = _order(table.num_rows, seed)
                numbered = ((index, table.slice(index, 1).to_pylist()[0]) for index in order)
            for index, data in numbered:
                yield SourceRow(f"{self.path}:row {index + 1}", data)


class HubDataset:
    """A dataset on Hugging Face; `OWNER/NAME:CONFIG` selects a configuration.

    Needs the extra `datasets`.
    """

    def __init__(self, name: str, split: str) -> None:
        self.name = name
        self.split = split

    def rows(self, seed: int | None = None) -> Iterator[SourceRow]:
        """See `Dataset.rows`."""
        table = self._load()
        for index in _order(len(table), seed):
            yield SourceRow(f"{self.name}[{self.split}]:row {index + 1}", dict(table[index]))

    def _load(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise ConfigurationError(
                f"--dataset {self.name}: no such file, and reading it from Hugging Face needs the "
                "datasets library: pip install 'hermes-queue[datasets]'"
            ) from error
        name, _, config = self.name.partition(":")
        try:
            return datasets.load_dataset(name, config or None, split=self.split)
        except (OSError, ValueError, RuntimeError, LookupError) as error:
            raise InputError(
                f"--dataset {self.name}: no such file, and Hugging Face did not return split "
                f"{self.split!r}: {error}"
            ) from error


def _order(size: int, seed: int | None) -> Sequence[int]:
    if seed is None:
        return range(size)
    order = list(range(size))
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    return order
