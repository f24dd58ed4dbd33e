"""What the index survives: hostile records, files written anew, and the loss of its own file."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_plugins.view.index import database, indexer, writing
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.records.rows import row_of
from hermes_plugins.view.sources import jsonl
from hermes_plugins.view.sources.jsonl import JsonlSource


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "x.sqlite"


@pytest.fixture
def opened(cache: Path, file: Path) -> Iterator[Callable[[], Index]]:
    """Opens an index of the file, up to date."""
    made: list[Index] = []

    def open_index(labels_of: Path | None = None) -> Index:
        made.append(Index(cache, [JsonlSource(file)], labels_of=labels_of))
        made[-1].refresh()
        return made[-1]

    yield open_index
    for each in made:
        each.close()


def record(sample: int = 0, **fields: Any) -> dict[str, Any]:
    found = {"trajectory_id": f"r.g.{sample}", "group_id": "r.g", "sample_index": sample}
    return {**found, "status": "completed", "created": 1000.0 + sample, "score": 0.0, **fields}


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in records)


def scores(index: Index) -> dict[str, float | None]:
    return {row["id"]: row["score"] for row in index.page().rows}


# --- records ------------------------------------------------------------------------------------


def test_a_record_without_an_id_is_shown_and_its_file_is_not_read_again_for_it(opened, file):
    file.write_text(lines({"status": "completed", "score": 1.0}, {"trajectory_id": "x" * 300}))
    index = opened()
    shown = [index.read(row["id"]) for row in index.page(sort="id").rows]
    assert sorted(map(len, shown)) == [1, 2]
    assert not index._indexer._again


def test_counts_of_tests_that_no_column_holds_keep_no_record_back(opened, file):
    many = {name: {"failure": 2**62 - 1} for name in "abc"}
    file.write_text(lines(record(0), record(1, report={"tests_status": many}), record(2)))
    assert opened().count() == 3


def test_a_record_that_cannot_be_listed_is_a_damaged_row(opened, file, monkeypatch):
    def wrong(raw: dict[str, Any], place: Any) -> Any:
        if raw["sample_index"] == 1:
            raise ZeroDivisionError
        return row_of(raw, place)

    monkeypatch.setattr(writing, "row_of", wrong)
    file.write_text(lines(record(0), record(1), record(2)))
    index = opened()
    assert (index.count(), index.count("is:damaged"), index.problems) == (3, 1, [])


# --- files that are written anew ----------------------------------------------------------------


def test_a_record_that_was_written_anew_is_listed_as_it_is(opened, file):
    file.write_text(lines(record(0), record(1)))
    index = opened()
    words = '"unheard"'
    again = record(0, score=1.0, messages=[{"role": "user", "content": "unheard"}])
    file.write_text(lines(again, record(1)))
    index.refresh()
    assert scores(index) == {"r.g.0": 1.0, "r.g.1": 0.0}
    assert (index.count(words), index.read("r.g.0")["score"]) == (1, 1.0)


def test_an_older_record_that_takes_the_place_of_a_newer_one_is_listed(opened, file):
    file.write_text(lines(record(0, created=2000.0)))
    index = opened()
    file.write_text(lines(record(0, created=1000.0, score=1.0)))
    for _ in range(2):
        index.refresh()
        assert scores(index) == {"r.g.0": 1.0}


@pytest.mark.parametrize("segment", [10, 10_000])
def test_of_several_records_with_an_id_the_last_one_of_the_file_counts(
    opened, file, monkeypatch, segment
):
    monkeypatch.setattr(jsonl, "_SEGMENT_BYTES", segment)
    file.write_text(lines(record(0), record(1), record(0, score=0.5)))
    index = opened()
    assert scores(index) == {"r.g.0": 0.5, "r.g.1": 0.0}
    with file.open("a") as more:
        more.write(lines(record(0, score=1.0)))
    index.refresh()
    assert scores(index) == {"r.g.0": 1.0, "r.g.1": 0.0}
    assert index.read("r.g.0")["score"] == 1.0


def test_a_longer_file_of_the_same_name_is_another_one_even_if_it_begins_alike(opened, file):
    records = [record(sample, pad="x" * 3000) for sample in range(5)]
    file.write_text(lines(*records))
    index = opened()
    records[3]["trajectory_id"] = "r.g.x"
    draft = file.with_suffix(".draft")
    draft.write_text(lines(*records, record(7)))
    draft.replace(file)
    index.refresh()
    assert sorted(scores(index)) == [f"r.g.{name}" for name in ("0", "1", "2", "4", "7", "x")]


def test_a_line_without_an_end_is_not_read_again_before_more_is_written(opened, file, monkeypatch):
    file.write_text(lines(record(0)) + '{"trajectory_id": "torn')
    index = opened()
    read = []
    monkeypatch.setattr(jsonl, "_lines", lambda *given: read.append(given) or iter(()))
    index.refresh()
    assert not read
    with file.open("a") as more:
        more.write('"')
    index.refresh()
    assert len(read) == 1


def test_a_file_that_takes_long_does_not_hold_up_the_end_and_is_not_written_after_it(
    cache, file, monkeypatch
):
    class SlowSource(JsonlSource):
        def scan(self, marks):
            reading.set()
            assert go_on.wait(10)
            yield from super().scan(marks)

    monkeypatch.setattr(indexer, "CLOSE_S", 0.01)
    reading, go_on = threading.Event(), threading.Event()
    file.write_text(lines(record(0)))
    index = Index(cache, [SlowSource(file)])
    index.start()
    assert reading.wait(10)
    [thread] = [each for each in threading.enumerate() if each.name == "index"]
    index.close()
    assert thread.is_alive()
    go_on.set()
    thread.join()
    [path] = cache.parent.glob("*.sqlite")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    connection.close()


# --- the file of the index ----------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["directory", "file", "octets", "table"])
def test_an_index_that_is_lost_under_a_viewer_is_made_again(opened, cache, file, loss):
    file.write_text(lines(record(0)))
    index = opened()
    index.set_reviews({"r.g.0": "fine"})
    [path] = cache.parent.glob("*.sqlite")
    if loss == "directory":
        shutil.rmtree(cache.parent)
    elif loss == "file":
        path.unlink()
    elif loss == "octets":
        os.truncate(path, 0)
    else:
        with sqlite3.connect(path) as other:
            other.execute("DROP TABLE words")
    with file.open("a") as more:
        more.write(lines(record(1, messages=[{"role": "user", "content": "hello"}])))
    index.refresh()
    index.refresh()
    assert (index.count(), index.count("reviewed:fine"), index.problems) == (2, 1, [])
    assert [each.stat().st_mode & 0o777 for each in cache.parent.glob("*.sqlite*")] == [0o600] * 3


def test_a_reader_of_an_index_that_another_viewer_made_again_reads_the_new_one(opened, cache, file):
    file.write_text(lines(record(0)))
    writer, reader = opened(), opened()
    assert (writer.writes, reader.writes, reader.count()) == (True, False, 1)
    [path] = cache.parent.glob("*.sqlite")
    path.unlink()
    file.write_text(lines(record(0), record(1)))
    writer.refresh()
    assert reader.count() == 2


def test_labels_of_another_viewer_are_in_an_index_that_was_made_again(opened, cache, file):
    file.write_text(lines(record(0)))
    writer, reader = opened(), opened(labels_of=Path("ada.jsonl"))
    reader.set_reviews({"r.g.0": "fine"})
    assert reader.count("reviewed:fine") == 1
    [path] = cache.parent.glob("*.sqlite")
    path.unlink()
    writer.refresh()
    assert (reader.count("reviewed:fine"), writer.count("reviewed:fine")) == (1, 0)


def test_other_tables_or_other_ways_to_fill_them_are_another_file(tmp_path):
    module = tmp_path / "rows.py"
    module.write_text("a")
    usual = database.schema_of("CREATE TABLE t (a);", [module])
    assert database.schema_of("CREATE TABLE t (a, b);", [module]) != usual
    module.write_text("b")
    assert database.schema_of("CREATE TABLE t (a);", [module]) != usual
    names = {f"{each.parent.name}/{each.name}" for each in database.FILLING}
    assert names >= {"records/rows.py", "records/texts.py", "sources/jsonl.py", "index/writing.py"}


def test_the_index_of_another_version_is_left_to_it_while_it_is_open(opened, cache, file):
    file.write_text(lines(record(0)))
    cache.parent.mkdir()
    other = cache.with_name("x.0123456789ab.sqlite")
    other.write_text("of another version")
    lock = database.try_hold(other.with_suffix(".lock"))
    assert lock is not None
    index = opened()
    assert (other.exists(), index.writes, index.count()) == (True, True, 1)
    index.close()
    os.close(lock)
    assert opened().count() == 1
    assert not other.exists()
