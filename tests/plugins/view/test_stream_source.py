"""The index over a real Redis: new groups, groups that move to the archive, purged runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from redis_server import RedisServer
from stream_groups import publish

from hermes_plugins.view.index import indexer
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.sources.archive import ArchiveSource
from hermes_plugins.view.sources.base import RecordGone
from hermes_plugins.view.sources.stream import StreamSource
from hermes_queue.bodies.store import ObjectStore
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings


@pytest.fixture
def stream(redis_server: RedisServer) -> StreamSource:
    return StreamSource(redis_server.url)


@pytest.fixture
def index(stream, tmp_path):
    made = Index(tmp_path / "index.sqlite", [ArchiveSource(tmp_path / "archive"), stream])
    yield made
    made.close()


def instances(index: Index) -> list[str]:
    return sorted(row["instance"] for row in index.page().rows)


def trimmed(ledger: Ledger, directory: Path) -> int:
    """Everything that was read by a consumer group is archived and deleted."""
    ledger.client.xgroup_create("hq:results", "trainer", id="0")
    ledger.client.xreadgroup("trainer", "one", {"hq:results": ">"})
    for entry, _ in ledger.client.xrange("hq:results"):
        ledger.client.xack("hq:results", "trainer", entry)
    sink = ArchiveSink(directory)
    entries = trim(ledger, ResultSettings(retention_s=0), interval_s=0, archive=sink).entries
    sink.close()
    return entries


def test_a_group_is_listed_once_it_is_published(ledger, index):
    publish(ledger, "a", "b")
    index.refresh()
    assert instances(index) == ["a", "a", "b", "b"]
    publish(ledger, "c")
    index.refresh()
    assert instances(index) == ["a", "a", "b", "b", "c", "c"]
    row = index.page(sort="-score").rows[0]
    assert index.read(row["id"])["score"] == 1.0


def test_a_round_without_news_reads_no_body(ledger, index, redis_server):
    publish(ledger, "a")
    index.refresh()
    with redis_server.client() as client:
        client.config_resetstat()
        index.refresh()
        commands = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    assert commands.isdisjoint({"get", "mget"})


def test_a_group_that_moves_to_the_archive_keeps_its_rows(ledger, index, tmp_path):
    publish(ledger, "a", "b")
    index.refresh()
    before = {row["id"]: row["n"] for row in index.page().rows}
    assert trimmed(ledger, tmp_path / "archive") == 2
    index.refresh()
    assert {row["id"]: row["n"] for row in index.page().rows} == before
    assert {index.read(name)["instance_id"] for name in before} == {"a", "b"}


def test_a_group_that_is_deleted_without_an_archive_is_no_row_any_more(ledger, index):
    publish(ledger, "a", "b")
    index.refresh()
    ledger.client.xdel("hq:results", ledger.client.xrange("hq:results")[0][0])
    index.refresh()
    assert instances(index) == ["b", "b"]


def test_the_newest_groups_come_first_and_a_broken_walk_goes_on(ledger, stream, monkeypatch):
    monkeypatch.setattr("hermes_plugins.view.sources.stream._PAGE", 2)
    publish(ledger, *"abcdef", scores=(1.0,))
    walking = stream.scan({})
    marks = {}
    for batch in walking:
        marks[batch.file] = batch.mark
        if batch.file == "walk":
            break
    first = [batch for batch in marks if batch != "walk"]
    publish(ledger, "g", scores=(1.0,))
    rest = [batch for batch in stream.scan(marks) if batch.found]
    newest = [found.known["instance_id"] for batch in rest for found in batch.found]
    assert len(first) == 2
    assert newest[:5] == ["g", "d", "c", "b", "a"]


def test_an_entry_of_another_program_and_a_damaged_body_are_no_end(ledger, index):
    ledger.client.xadd("hq:results", {"hello": b"\xff", "members": "[1, {}"})
    publish(ledger, "a", scores=(1.0,))
    ledger.client.xadd("hq:results", {"members": '["x.y.0", 7]', "run_id": "x", "size": "nan"})
    ledger.client.set("hq:body:x.y.0", b"no body")
    index.refresh()
    assert index.count("run:run") == 1
    [row] = index.page("is:damaged").rows
    assert (row["id"], row["run"], row["status"]) == ("x.y.0", "x", "damaged")
    assert "not a record body" in row["problem"]


def test_a_key_of_another_type_is_a_record_that_is_gone(ledger, index):
    publish(ledger, "a", scores=(1.0,))
    index.refresh()
    [row] = index.page().rows
    ledger.client.delete(f"hq:body:{row['id']}")
    ledger.client.lpush(f"hq:body:{row['id']}", "x")
    with pytest.raises(RecordGone, match="deleted from Redis"):
        index.read(row["id"])


def test_a_purged_run_that_runs_again_takes_the_place_of_its_first_life(ledger, index):
    publish(ledger, "a", scores=(0.0,))
    index.refresh()
    [old] = index.page().rows
    runs = Runs(ledger)
    runs.cancel("run", "wrong")
    runs.purge("run")
    job = make_job("run", "a")
    enqueue(ledger, job)
    epoch = begin(ledger, job).epoch
    record = make_record(job, 1.0, epoch=epoch).model_copy(update={"created": time.time()})
    assert publish_record(ledger, record) == "group"
    index.refresh()
    [new] = index.page().rows
    assert (new["id"], new["score"], new["n"] > old["n"]) == (old["id"], 1.0, True)
    assert index.read(new["id"])["score"] == 1.0


def test_rows_of_summaries_are_completed_and_keep_their_numbers(ledger, index, monkeypatch):
    jobs = [make_job("run", name, 0, 1) for name in "ab"]
    for job in jobs:
        enqueue(ledger, job)
        begin(ledger, job)
        made = {"created": 1000.1234567}
        publish_record(ledger, make_record(job, 1.0).model_copy(update=made))
    entries = ledger.client.xrange("hq:results")
    ledger.client.delete("hq:results")
    for _, fields in entries:
        summary = {"status": "completed", "score": 1.0, "turns": 1}
        if fields[b"instance_id"] == b"a":  # the other one had no room for it
            summary["created"] = 1000.123
        ledger.client.xadd("hq:results", {**fields, "summaries": json.dumps([summary])})
    with monkeypatch.context() as patched:
        patched.setattr(StreamSource, "_completed", lambda self, known: iter(()))
        index.refresh()
    rows = {row["id"]: row["n"] for row in index.page("score:1").rows}
    assert len(rows) == 2
    assert index.count('"1"') == 0
    index.refresh()
    assert {row["id"]: row["n"] for row in index.page("score:1").rows} == rows
    assert index.count('"1"') == index.count("messages:2") == index.count() == 2


def test_a_summary_of_a_damaged_record_becomes_a_damaged_row(ledger, index, monkeypatch):
    publish(ledger, "a", scores=(1.0,))
    [(entry, fields)] = ledger.client.xrange("hq:results")
    ledger.client.xdel("hq:results", entry)
    summary = json.dumps([{"status": "completed", "score": 1, "turns": 7, "created": 5.5}])
    ledger.client.xadd("hq:results", {**fields, "summaries": summary})
    [name] = json.loads(fields[b"members"])
    ledger.client.set(f"hq:body:{name}", b"junk")
    index.refresh()
    [row] = index.page("is:damaged").rows
    assert (row["id"], row["status"], row["score"], row["turns"]) == (name, "damaged", 1.0, 7)


def test_a_store_that_does_not_answer_is_asked_again(ledger, index, tmp_path, monkeypatch):
    monkeypatch.setattr("hermes_plugins.view.sources.stream._LATER_S", 0.0)
    publish(ledger, "a", scores=(1.0,))
    [(_, fields)] = ledger.client.xrange("hq:results")
    [name] = json.loads(fields[b"members"])
    store = ObjectStore((tmp_path / "store").as_uri())
    claim = store.put(store.place("run", "0" * 64), ledger.client.get(f"hq:body:{name}"))
    ledger.client.set(f"hq:body:{name}", claim.encode())
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    index.refresh()
    [row] = index.page("is:damaged").rows
    assert "does not answer" in row["problem"]
    assert "does not answer" in index.problems[0]
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    index.refresh()
    [row] = index.page().rows
    assert (row["id"], row["score"], row["problem"], index.problems) == (name, 1.0, None, [])
    assert index.read(name)["trajectory_id"] == name


def test_redis_that_goes_away_is_a_problem_and_comes_back(ledger, index, redis_server):
    publish(ledger, "a")
    index.refresh()
    redis_server.kill9()
    index.refresh()
    assert any("cannot be reached" in problem for problem in index.problems)
    assert instances(index) == ["a", "a"]
    redis_server.start()
    index.refresh()
    assert index.problems == []


def test_nobody_who_looks_means_no_command(ledger, index, redis_server, monkeypatch):
    monkeypatch.setattr(indexer, "LOOKED_AT_S", 0.0)
    monkeypatch.setattr(indexer, "EVERY_S", 0.01)
    publish(ledger, "a")
    index.start()
    with redis_server.client() as client:
        wait_until(lambda: not index.indexing)
        time.sleep(0.2)
        client.config_resetstat()
        time.sleep(0.3)
        commands = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    assert commands <= {"config|resetstat", "info"}
    publish(ledger, "b")
    index.touch()
    wait_until(lambda: index.count() == 4)


def wait_until(holds) -> None:
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")
