"""The index over files: what it shows survives torn, rewritten, damaged and deleted files."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import threading
import tracemalloc
import zlib
from pathlib import Path

import pytest
from records import make_job, make_record

from hermes_plugins.view.index import database, indexer, writing
from hermes_plugins.view.index import pages as index_pages
from hermes_plugins.view.index.cursors import PageError
from hermes_plugins.view.index.database import QueryTooSlow
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.records.raw import UnreadableRecord
from hermes_plugins.view.sources import jsonl
from hermes_plugins.view.sources.archive import ArchiveSource
from hermes_plugins.view.sources.base import RecordGone
from hermes_plugins.view.sources.frames import group_in
from hermes_plugins.view.sources.jsonl import JsonlSource
from hermes_plugins.view.sources.opening import index_path, open_sources
from hermes_plugins.view.sources.parquet import ParquetSource
from hermes_queue.bodies.codec import encode_record
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.models import Message, ScoredTrajectory
from hermes_queue.results.archive import MAGIC, ArchiveSink
from hermes_queue.results.stored import StoredGroup
from hermes_queue.sinks.datasets.parquet import ParquetSink


def member(instance: str, sample: int, score: float | None, size: int = 4, **more):
    record = make_record(make_job("run", instance, sample, size), score)
    return record.model_copy(update={"created": 1000.0 + sample, **more})


def group(instance: str, scores=(0.0, 1.0, 0.0, None), **more) -> list[ScoredTrajectory]:
    size = len(scores)
    return [member(instance, at, score, size, **more) for at, score in enumerate(scores)]


def lines(*groups: list[ScoredTrajectory]) -> str:
    return "".join(f"{each.to_json()}\n" for some in groups for each in some)


def stored(records: list[ScoredTrajectory], **more: str) -> StoredGroup:
    first = records[0]
    fields = {
        **{name: getattr(first, name) for name in ("run_id", "group_id", "env", "instance_id")},
        "members": json.dumps([each.trajectory_id for each in records]),
        "size": str(first.group_size),
        "finished": "2000.5",
    }
    bodies = {each.trajectory_id: encode_record(each) for each in records}
    return StoredGroup({**fields, **more}, bodies)


def archived(directory: Path, *groups: StoredGroup) -> Path:
    sink = ArchiveSink(directory)
    sink.store(groups)
    sink.close()
    [*_, newest] = sorted(directory.glob("*/*.groups"), key=lambda path: path.name)
    return newest


@pytest.fixture
def opened(tmp_path):
    """Opens an index of these sources, the same one again if it is called again."""
    made: list[Index] = []

    def open_index(*sources) -> Index:
        while made:
            made.pop().close()
        made.append(Index(tmp_path / "index" / "x.sqlite", sources))
        made[0].refresh()
        return made[0]

    yield open_index
    while made:
        made.pop().close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def ids(index: Index, query: str = "") -> dict[str, int]:
    return {row["id"]: row["n"] for row in index.page(query).rows}


# --- JSON lines ---------------------------------------------------------------------------------


def test_a_line_is_read_when_it_is_whole_and_none_is_read_twice(opened, file):
    text = lines(group("a"))
    cut = len(text) - 300
    file.write_text(text[:cut])
    index = opened(JsonlSource(file))
    assert index.count() == 3
    before = ids(index)
    with file.open("a") as more:
        more.write(text[cut:])
    index.refresh()
    assert index.count() == 4
    assert before.items() <= ids(index).items()
    index = opened(JsonlSource(file))
    assert before.items() <= ids(index).items()


def test_a_last_line_without_an_end_is_read_if_it_is_a_whole_object(opened, file):
    file.write_text(lines(group("a")).rstrip("\n"))
    index = opened(JsonlSource(file))
    assert index.count() == 4
    with file.open("a") as more:
        more.write("\n" + lines(group("b")))
    index.refresh()
    assert (index.count(), index.count("is:damaged")) == (8, 0)


def test_a_file_that_is_written_anew_keeps_the_rows_that_are_in_it_again(opened, file):
    file.write_text(lines(group("a"), group("b")))
    index = opened(JsonlSource(file))
    before = ids(index, "instance:b")
    file.write_text(lines(group("c"), group("b")))
    index.refresh()
    assert ids(index, "instance:b") == before
    assert index.count("instance:a") == 0
    assert index.count("instance:c") == 4
    assert {index.read(name)["instance_id"] for name in ids(index)} == {"b", "c"}


@pytest.mark.parametrize("kind", ["jsonl", "archive"])
def test_a_file_that_is_made_empty_takes_its_rows_with_it(
    opened, tmp_path, file, monkeypatch, kind
):
    monkeypatch.setattr(indexer, "SLICE_S", 0.0)
    if kind == "jsonl":
        file.write_text(lines(group("a")))
        source, path, rest = JsonlSource(file), file, b""
    else:
        path = archived(tmp_path / "archive", stored(group("a")))
        source, rest = ArchiveSource(tmp_path / "archive"), MAGIC
    index = opened(source)
    assert index.count() == 4
    path.write_bytes(rest)
    index.refresh()
    assert index.count() == 0


@pytest.mark.parametrize("segment", [100, 3000, 8000])
def test_the_last_lines_are_read_first_and_each_once(opened, file, monkeypatch, segment):
    monkeypatch.setattr(jsonl, "_SEGMENT_BYTES", segment)
    monkeypatch.setattr(indexer, "SLICE_S", 0.0)
    text = lines(*(group(f"i{at}") for at in range(6)))
    file.write_text("{torn}\n\n" + text + lines(group("last"))[:-200])
    index = opened(JsonlSource(file))
    rows = sorted(index.page(limit=500).rows, key=lambda row: row["n"])
    assert rows[0]["instance"] in ("i5", "last")
    assert len(rows) == 28
    assert index.count("is:damaged") == 1
    file.write_text("{torn}\n\n" + text + lines(group("last")))
    index.refresh()
    assert index.count() == 29
    assert {index.read(row["id"])["trajectory_id"] for row in rows if row["run"]} < set(ids(index))


def test_a_file_that_is_gone_takes_its_rows_with_it(opened, file):
    file.write_text(lines(group("a")))
    index = opened(JsonlSource(file))
    file.unlink()
    index.refresh()
    assert index.count() == 0
    assert "cannot be read" in index.problems[0]


def test_lines_that_are_no_records_are_counted_and_shown(opened, file):
    newer = json.dumps({"schema_version": 9, "trajectory_id": "x"})
    good = lines(group("a"))
    file.write_bytes(b"{broken\n\n\0\0\n[1]\n" + newer.encode() + b"\n{}\n" + good.encode())
    index = opened(JsonlSource(file))
    assert index.count() == 8
    damaged = index.page("is:damaged").rows
    assert {row["status"] for row in damaged} == {"damaged"}
    assert any("newer hermes-queue" in row["problem"] for row in damaged)
    with pytest.raises(UnreadableRecord):
        index.read(next(row["id"] for row in damaged if "newer" in row["problem"]))
    file.write_text(good)
    index.refresh()
    assert index.count("is:damaged") == 0


def test_a_line_that_is_too_long_is_passed_over_piece_by_piece(opened, file, monkeypatch):
    monkeypatch.setattr(jsonl, "MAX_RECORD_BYTES", 10_000)
    monkeypatch.setattr(jsonl, "_BATCH_BYTES", 4096)
    file.write_text('{"a": "' + "x" * 50_000 + '"}\n' + lines(group("a")))
    index = opened(JsonlSource(file))
    assert index.count("run:run") == 4
    [row] = index.page("is:damaged").rows
    assert "a line of 50010 bytes" in row["problem"]


def test_an_id_of_ten_megabytes_and_one_with_half_a_surrogate_pair_are_no_ids(opened, file):
    odd = [{"trajectory_id": name, "run_id": name} for name in ("x" * 1_000_000, "\ud800", 5)]
    file.write_text("".join(json.dumps(each) + "\n" for each in odd))
    index = opened(JsonlSource(file))
    assert index.count("is:damaged") == 3
    assert all(len(row["id"]) < 40 for row in index.page().rows)


def test_a_path_that_is_no_file_is_refused(tmp_path):
    (tmp_path / "fifo").mkdir()
    for path in (tmp_path / "none.jsonl", tmp_path / "fifo"):
        with pytest.raises(ConfigurationError):
            JsonlSource(path)
    with pytest.raises(ConfigurationError, match="neither groups of an archive"):
        open_sources([tmp_path])
    with pytest.raises(ConfigurationError, match="no such file"):
        open_sources([tmp_path / "none"])


# --- archives -----------------------------------------------------------------------------------


def test_an_archive_is_read_with_what_its_entries_say(opened, tmp_path):
    records = group("a", (0.0, 1.0, 1.0))
    entry = {"extras": json.dumps([records[2].trajectory_id])}
    entry |= {"members": json.dumps([each.trajectory_id for each in records[:2]])}
    entry |= {"stale": json.dumps([records[0].trajectory_id]), "published": "[1990.5, 0]"}
    archived(tmp_path / "archive", stored(records, **entry))
    index = opened(ArchiveSource(tmp_path / "archive"))
    rows = index.group(records[0].group_id)["rows"]
    assert [row["sample"] for row in rows] == [0, 1, 2]
    assert [(row["extra"], row["stale"]) for row in rows] == [
        (False, True), (False, False), (True, False)]  # fmt: skip
    assert [row["finished"] for row in rows] == [1990.5, 2000.5, 2000.5]
    [listed] = index.groups().groups
    assert (listed["mean"], listed["std"], listed["count"]) == (0.5, 0.5, 2)
    assert index.read(rows[1]["id"])["score"] == 1.0


def test_a_torn_frame_is_read_when_it_is_whole(opened, tmp_path):
    path = archived(tmp_path / "archive", stored(group("a")), stored(group("b")))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    index = opened(ArchiveSource(tmp_path / "archive"))
    before = ids(index)
    assert len(before) == 4
    path.write_bytes(whole)
    index.refresh()
    assert index.count() == 8
    assert before.items() <= ids(index).items()


def test_a_damaged_frame_is_one_row_and_those_behind_it_are_read(opened, tmp_path):
    path = archived(tmp_path / "archive", *(stored(group(name)) for name in "abc"))
    data = bytearray(path.read_bytes())
    second = data.index(stored(group("b")).bodies[group("b")[0].trajectory_id])
    data[second + 20] ^= 255
    path.write_bytes(data)
    index = opened(ArchiveSource(tmp_path / "archive"))
    assert index.count("instance:a,c") == 8
    [row] = index.page("is:damaged").rows
    assert "is damaged" in row["problem"]


def test_one_damaged_body_does_not_take_its_group_along(opened, tmp_path):
    whole = stored(group("a"))
    first = next(iter(whole.bodies))
    archived(tmp_path / "archive", StoredGroup(whole.fields, {**whole.bodies, first: b"junk"}))
    index = opened(ArchiveSource(tmp_path / "archive"))
    [row] = index.page("is:damaged").rows
    assert (row["id"], row["instance"], row["group"]) == (first, "a", whole.fields["group_id"])
    assert index.count() == 4


@pytest.mark.parametrize("payload", [b"\xc0", b"\x92\x01\x02", b"\x92\x80\x80", b"\x91" * 3000])
def test_a_frame_of_anything_is_read_past(opened, tmp_path, payload):
    path = archived(tmp_path / "archive", stored(group("a")))
    with path.open("ab") as more:
        more.write(struct.pack("<II", len(payload), zlib.crc32(payload)) + payload)
    assert opened(ArchiveSource(tmp_path / "archive")).count("run:run") == 4


def test_a_frame_that_names_millions_of_bodies_does_not_take_their_memory(opened, tmp_path):
    path = archived(tmp_path / "archive", stored(group("a")))
    payload = b"\x92\x80\xdd" + struct.pack(">I", 1 << 20) + b"\xc0" * (1 << 20)
    frame = struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    path.write_bytes(path.read_bytes() + frame)
    assert opened(ArchiveSource(tmp_path / "archive")).count("is:damaged") == 1
    tracemalloc.start()
    assert group_in(payload) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_a_deleted_run_of_the_archive_is_gone_unless_another_source_has_it(opened, tmp_path, file):
    path = archived(tmp_path / "archive", stored(group("a")), stored(group("b")))
    file.write_text(lines(group("b")))
    index = opened(ArchiveSource(tmp_path / "archive"), JsonlSource(file))
    before = ids(index, "instance:b")
    assert index.count() == 8
    path.unlink()
    with pytest.raises(RecordGone):
        index.read(next(iter(ids(index, "instance:a"))))
    index.refresh()
    assert ids(index) == before
    assert index.read(next(iter(before)))["instance_id"] == "b"


def test_links_in_an_archive_are_not_followed(opened, tmp_path):
    other = archived(tmp_path / "other", stored(group("a")))
    directory = tmp_path / "archive"
    archived(directory, stored(group("b")))
    (directory / "linked").symlink_to(other.parent)
    (directory / "run" / "1.groups").symlink_to(other)
    assert opened(ArchiveSource(directory)).count() == 4


def test_a_directory_of_shards_is_read_like_the_records_in_it(opened, tmp_path, file):
    sink = ParquetSink(tmp_path / "shards")
    sink.write([*group("a"), *group("b")])
    sink.close()
    file.write_text(lines(group("a"), group("b")))
    index = opened(ParquetSource(tmp_path / "shards"))
    rows = index.page(sort="id").rows
    assert (len(rows), index.problems) == (8, [])
    found = index.read(rows[5]["id"])
    assert found["trajectory_id"] == rows[5]["id"]
    assert list(found["sequences"][0]["ids"]) == [1, 2, 3]
    lined = opened(JsonlSource(file)).page(sort="id").rows
    for own in (*rows, *lined):
        for name in ("n", "bytes"):
            del own[name]
    assert rows == lined
    (tmp_path / "shards" / "train-00007.parquet").write_bytes(b"PAR1 no")
    index = opened(ParquetSource(tmp_path / "shards"))
    assert index.count() == 8
    assert "train-00007.parquet: cannot be read" in index.problems[0]


# --- lists --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listed")
    groups = [group(f"i{at}", (0.0, 0.0, float(at % 2), 0.0)) for at in range(12)]
    odd = [member("odd", 0, 0.5, messages=(Message(role="tool", content="needle \u00e9"),))]
    (folder / "a.jsonl").write_text(lines(*groups, odd))
    index = Index(folder / "x.sqlite", [JsonlSource(folder / "a.jsonl")])
    index.refresh()
    yield index
    index.close()


def test_pages_hold_each_row_once_and_are_pinned(listed):
    first = listed.page(sort="-created", limit=10)
    found, after = [row["id"] for row in first.rows], first.next
    while after:
        page = listed.page(sort="-created", limit=10, after=after, upto=first.upto)
        found += [row["id"] for row in page.rows]
        after = page.next
    assert len(found) == len(set(found)) == first.count == 49
    assert listed.page(upto=20).count == 20
    assert listed.count(above=20) == 29


def test_neighbours_are_those_of_the_filtered_list(listed):
    rows = listed.page("score:1", sort="score", limit=500).rows
    for at, row in enumerate(rows):
        near = listed.neighbours(row["id"], "score:1", sort="score")
        assert near == {
            "before": rows[at - 1]["id"] if at else None,
            "after": rows[at + 1]["id"] if at + 1 < len(rows) else None,
            "position": at + 1,
            "count": 6,
        }
    assert listed.neighbours("none") is None


def test_the_only_sample_with_a_score_is_flagged(listed):
    flagged = listed.page("flag:lone_score").rows
    assert len(flagged) == 6
    assert {row["score"] for row in flagged} == {1.0}


def test_groups_have_the_numbers_of_their_rows(listed):
    page = listed.groups(sort="-std", limit=4)
    assert page.count == 13
    assert [round(each["std"], 3) for each in page.groups] == [0.433] * 4
    names = [each["group"] for each in page.groups]
    while page.next:
        page = listed.groups(sort="-std", limit=4, after=page.next)
        names += [each["group"] for each in page.groups]
    assert len(names) == len(set(names)) == 13
    assert page.groups[-1]["std"] == 0.0
    with pytest.raises(PageError, match="groups cannot be sorted"):
        listed.groups(sort="nothing")


def test_the_terms_of_a_bin_meet_its_rows(listed):
    for of in ("score", "turns", "tokens", "cost"):
        histogram = listed.histogram("", of)
        assert sum(b["count"] for b in histogram["bins"]) + histogram["unmeasured"] == 49
        for each in histogram["bins"]:
            assert listed.count(each["q"]) == each["count"]
    with pytest.raises(PageError, match="no histogram"):
        listed.histogram("", "n; DROP TABLE t")


def test_a_run_is_summed_up(listed):
    run = listed.run("run")
    assert (run["count"], run["scored"], run["failed"]) == (49, 49, 0)
    assert run["mean"] == pytest.approx(6.5 / 49)
    assert listed.run("none") is None
    assert [each["run"] for each in listed.runs()] == ["run"]


def test_grep_looks_into_tool_output_and_goes_on_where_its_time_ended(listed, monkeypatch):
    page = listed.page('grep:"needle é"')
    assert ([row["instance"] for row in page.rows], page.scanned, page.next) == (["odd"], 49, None)
    assert listed.count('"needle"') == 0
    found, after, pages = [], None, 0
    while pages == 0 or after:
        page = listed.page('grep:"needle"', after=after, grep_s=0)
        found, after, pages = found + page.rows, page.next, pages + 1
        assert page.scanned == 1 or not page.next
    assert (len(found), pages >= 49) == (1, True)
    assert index_pages.SCAN_S == 10


def test_reviewed_looks_at_labels(listed):
    name = listed.page().rows[0]["id"]
    listed.set_reviews({name: "fine"})
    assert listed.count("reviewed:fine") == listed.count("reviewed:yes") == 1
    listed.set_reviews({})
    assert listed.count("reviewed:no") == 49


def test_viewers_of_one_index_with_other_files_of_labels_see_their_own(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text(make_record(make_job()).to_json() + "\n")
    name = make_job().trajectory_id
    files = (tmp_path / "ada.jsonl", tmp_path / "bob.jsonl", None)
    shown = [Index(tmp_path / "i", [JsonlSource(path)], labels_of=file) for file in files]
    shown[0].refresh()
    for index, label in zip(shown, ("fine", "cheating"), strict=False):
        index.set_reviews({name: label})
    met = [[each.count(f"reviewed:{label}") for label in ("fine", "cheating")] for each in shown]
    assert met == [[1, 0], [0, 1], [0, 0]]
    for each in shown:
        each.close()


def test_a_query_that_takes_too_long_is_ended(listed, monkeypatch):
    monkeypatch.setattr(database, "_CHECK_OPERATIONS", 10)
    sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"
    with pytest.raises(QueryTooSlow, match="narrow it"), listed._database.reader(seconds=0) as some:
        some.execute(sql)
    assert listed.count() == 49


def test_readers_of_many_threads_share_a_few_connections(listed):
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(listed.count())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [49] * 20
    assert listed._database._idle.qsize() == database.READERS


# --- the file -----------------------------------------------------------------------------------


def test_the_file_is_for_its_owner_alone_and_other_versions_are_deleted(opened, tmp_path, file):
    (tmp_path / "index").mkdir()
    old = tmp_path / "index" / "x.0123456789ab.sqlite"
    old.write_text("old")
    file.write_text(lines(group("a")))
    opened(JsonlSource(file))
    assert not old.exists()
    [path] = (tmp_path / "index").glob("*.sqlite")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "index").stat().st_mode & 0o077 in (0, 0o055)


@pytest.mark.parametrize("damage", ["no database at all", None])
def test_a_damaged_file_is_made_again(opened, tmp_path, file, damage):
    file.write_text(lines(group("a")))
    index = opened(JsonlSource(file))
    index.close()
    [path] = (tmp_path / "index").glob("*.sqlite")
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(damage.encode() * 400 if damage else data)
    index = opened(JsonlSource(file))
    index.refresh()
    assert index.count() == 4


def test_a_second_viewer_reads_what_the_first_one_writes(opened, tmp_path, file):
    file.write_text(lines(group("a")))
    first = opened(JsonlSource(file))
    second = Index(tmp_path / "index" / "x.sqlite", [JsonlSource(file)])
    try:
        with file.open("a") as more:
            more.write(lines(group("b")))
        second.refresh()
        assert second.count() == 4
        first.refresh()
        assert second.count() == 8
    finally:
        second.close()


def test_a_disk_that_is_full_ends_nothing(opened, file, monkeypatch):
    file.write_text(lines(group("a")))
    index = opened(JsonlSource(file))
    writer = database.Database.writer

    def full(self) -> sqlite3.Connection:
        connection = writer(self)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    big = group("b", report={"detail": " ".join(f"word{at}" for at in range(900))})
    with file.open("a") as more:
        more.write(lines(big, group("c", report=big[0].report), group("d", report=big[0].report)))
    with monkeypatch.context() as patched:
        patched.setattr(database.Database, "writer", full)
        index.refresh()
    assert "cannot be written" in index.problems[0]
    assert index.count() == 4
    index.refresh()
    assert (index.count(), index.problems) == (16, [])


def test_the_thread_reads_by_itself_while_somebody_looks(tmp_path, file):
    file.write_text(lines(group("a")))
    index = Index(tmp_path / "x.sqlite", [JsonlSource(file)])
    index.start()
    try:
        for _ in range(1000):
            if not index.indexing:
                break
            threading.Event().wait(0.01)
        assert index.count() == 4
    finally:
        index.close()


def test_a_new_group_is_listed_while_an_old_archive_is_still_being_read(
    opened, tmp_path, file, monkeypatch
):
    monkeypatch.setattr(indexer, "SLICE_S", 0.0)
    archived(tmp_path / "archive", *(stored(group(f"i{at}")) for at in range(40)))
    file.write_text("")
    first, old = JsonlSource(file), ArchiveSource(tmp_path / "archive")
    order: list[str] = []
    apply = writing.IndexWriter.apply

    def noted(self, source, batch):
        if len(order) == 1:
            file.write_text(lines(group("new")))
        order.extend(batch.found and [source])
        return apply(self, source, batch)

    monkeypatch.setattr(writing.IndexWriter, "apply", noted)
    index = opened(first, old)
    assert index.count() == 164
    assert order.index(first.name) < len(order) - 1


def test_a_shard_is_read_on_where_it_was_left(opened, tmp_path, monkeypatch):
    from pyarrow import parquet

    monkeypatch.setattr(indexer, "SLICE_S", 0.0)
    sink = ParquetSink(tmp_path / "shards")
    sink.write([record for at in range(5) for record in group(f"i{at}")])
    sink.close()
    [shard] = (tmp_path / "shards").glob("*.parquet")
    parquet.write_table(parquet.read_table(shard), shard, row_group_size=3)
    index = opened(ParquetSource(tmp_path / "shards"))
    assert (index.count(), index.problems) == (20, [])
    assert {index.read(name)["trajectory_id"] for name in ids(index)} == set(ids(index))


def test_a_damage_that_only_a_reader_meets_is_repaired(opened, file, monkeypatch):
    file.write_text(lines(group("a")))
    index = opened(JsonlSource(file))
    with pytest.raises(HermesQueueError, match="cannot be read"), index._database.reader():
        raise sqlite3.DatabaseError("database disk image is malformed")
    index.refresh()
    assert index.count() == 4


def test_another_viewer_writes_when_the_first_one_has_ended(tmp_path, file):
    file.write_text(lines(group("a")))
    first, second = (Index(tmp_path / "x.sqlite", [JsonlSource(file)]) for _ in range(2))
    second.refresh()
    assert second.count() == 0
    first.close()
    second.refresh()
    assert second.count() == 4
    second.close()


def test_a_request_that_comes_after_the_end_gets_an_error(opened, file):
    file.write_text(lines(group("a")))
    index = opened(JsonlSource(file))
    with index._database.reader() as late:
        index.close()
        assert late.execute("SELECT count(*) FROM t").fetchone() == (4,)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        late.execute("SELECT 1")
    with pytest.raises(HermesQueueError, match="is closed"):
        index.count()


def test_sources_have_one_index_whatever_their_order(tmp_path, file, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    file.write_text(lines(group("a")))
    archived(tmp_path / "archive", stored(group("b")))
    sources = open_sources([file, tmp_path / "archive"])
    assert [source.kind for source in sources] == ["jsonl", "archive"]
    assert index_path(sources) == index_path(sources[::-1])
    assert index_path(sources).parent == tmp_path / "view"
