"""Reading rows: order, places, and errors that name the place."""

from __future__ import annotations

import gzip
import json
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from hermes_queue.errors import ConfigurationError, InputError
from producers.run.dataset import Dataset, open_dataset

ROWS = [{"instance_id": f"i{n}", "n": n} for n in range(40)]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def opened(path: Path | str, split: str | None = None) -> Dataset:
    return open_dataset(str(path), bundled=Path("bundled.jsonl"), split=split)


@pytest.fixture(params=["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def dataset_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(jsonl(ROWS)))
    else:
        path.write_bytes(jsonl(ROWS))
    return path


def test_every_format_gives_the_same_rows_in_order(dataset_path: Path) -> None:
    assert [row.data for row in opened(dataset_path).rows()] == ROWS


def test_shuffling_is_a_permutation_that_the_seed_alone_decides(dataset_path: Path) -> None:
    once = [row.data["n"] for row in opened(dataset_path).rows(7)]
    again = [row.data["n"] for row in opened(dataset_path).rows(7)]
    other = [row.data["n"] for row in opened(dataset_path).rows(8)]
    assert once == again
    assert sorted(once) == list(range(40))
    assert once != other
    assert once != list(range(40))


def test_a_shuffled_row_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n" + jsonl(ROWS))
    for row in opened(path).rows(1):
        assert row.place == f"{path}:{row.data['n'] + 2}"


def test_blank_lines_count_but_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n  \n{"a": 2}\n')
    assert [row.place for row in opened(path).rows()] == [f"{path}:1", f"{path}:4"]


def test_a_last_line_without_newline_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}')
    assert [row.data["a"] for row in opened(path).rows()] == [1, 2]


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert [row.data for row in opened(path).rows()] == [{"a": 1}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": 2', ":2: the last line is truncated"),
        (b'{"a": 1}\n{"a": \n{"a": 3}\n', ":2: is not valid JSON"),
        (b'{"a": 1}\n[1, 2]\n', ":2: is a list"),
        (b'{"a": 1}\n{"a": "\xff"}\n', ":2: is not UTF-8"),
        (b"[" * 200_000 + b"\n", ":1: is not valid JSON"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(opened(path).rows())
    assert f"{path}{message}" in str(caught.value)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_a_damaged_gzip_file_is_an_input_error(tmp_path: Path, damage: str, shuffle: bool) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(ROWS))[:-12] if damage == "cut" else jsonl(ROWS))
    with pytest.raises(InputError, match="damaged or cut off"):
        list(opened(path).rows(0 if shuffle else None))


def test_a_file_that_is_no_parquet_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        list(opened(path).rows())


@pytest.mark.parametrize("seed", [None, 0], ids=["in order", "shuffled"])
def test_a_parquet_file_that_is_damaged_within_is_named(tmp_path: Path, seed: int | None) -> None:
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"text": [str(n) * 50 for n in range(1000)]})
    parquet.write_table(table, path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[len(data) // 8 : len(data) // 2] = b"\xff" * (len(data) // 2 - len(data) // 8)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"rows\.parquet: is not a readable Parquet"):
        list(opened(path).rows(seed))


@pytest.mark.parametrize("name", ["missing.jsonl", "./missing", "a/b/c", "/no/such/rows.parquet"])
def test_a_missing_path_is_an_input_error(name: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        opened(name)


def test_a_directory_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    with pytest.raises(InputError, match="is a directory"):
        opened(tmp_path)
    with pytest.raises(InputError, match="unknown format"):
        opened(tmp_path / "rows.csv")


def test_bundled_means_the_producers_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(jsonl(ROWS))
    dataset = open_dataset("bundled", bundled=path)
    assert next(iter(dataset.rows())).data == ROWS[0]


def test_a_split_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(ROWS))
    with pytest.raises(ConfigurationError, match="--split test"):
        opened(path, split="test")


def test_a_hub_name_without_the_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hermes-queue\[datasets\]'"):
        list(opened("owner/name").rows())


def test_parquet_without_pyarrow_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    path.touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hermes-queue\[parquet\]'"):
        list(opened(path).rows())


def fake_datasets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands in for the `datasets` library, which needs the network to be of use."""
    calls: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        calls.append((name, config, split))
        if split == "nope":
            raise ValueError("Unknown split 'nope'")
        return ROWS

    module = types.ModuleType("datasets")
    module.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_a_hub_name_is_loaded_with_configuration_and_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = fake_datasets(monkeypatch)
    rows = list(opened("owner/name:main").rows())
    assert [row.data for row in rows] == ROWS
    assert rows[2].place == "owner/name:main[train]:row 3"
    assert calls == [("owner/name", "main", "train")]


def test_a_hub_error_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_datasets(monkeypatch)
    with pytest.raises(InputError, match="Unknown split"):
        list(opened("owner/name", split="nope").rows())
