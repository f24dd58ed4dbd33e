"""What was finished before can be read again, also after it was deleted from Redis."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path

import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record

import hermes_queue
from hermes_queue.errors import ConfigurationError, HermesQueueError, SchemaTooNew
from hermes_queue.ledger import Ledger
from hermes_queue.results.archive import ArchiveSink, archived_runs, read_archive
from hermes_queue.results.stored import BodyMissing, stored_group
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings

NOW = ResultSettings(retention_s=0)


def publish(ledger: Ledger, *instances: str, run_id: str = "run", score: float | None = 1.0):
    jobs = [make_job(run_id, instance=name) for name in instances]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish_record(ledger, make_record(job, score))
    return jobs


async def read_all(ledger: Ledger, group: str = "trainer") -> None:
    async for delivered in hermes_queue.consume(group, url=ledger.url, idle_timeout_s=0.3):
        await delivered.ack()


def replayed(ledger: Ledger, archive: Path, **options) -> list[str]:
    found = hermes_queue.replay(url=ledger.url, archive=archive, **options)
    return [group.instance_id for group in found]


async def test_what_is_trimmed_is_in_the_archive_and_replayed_before_the_stream(ledger, tmp_path):
    publish(ledger, "a", "b")
    publish(ledger, "c", run_id="x:y/z")
    await read_all(ledger)
    archive = ArchiveSink(tmp_path / "archive")
    done = trim(ledger, NOW, interval_s=0, archive=archive)
    assert done.entries == 3
    assert ledger.client.keys("hq:body:*") == []
    publish(ledger, "d")
    assert sorted(replayed(ledger, archive.directory)) == ["a", "b", "c", "d"]
    assert replayed(ledger, archive.directory, run="x:y/z", stream=False) == ["c"]


async def test_an_archived_group_is_what_the_stream_had(ledger, tmp_path):
    [job] = publish(ledger, "a")
    [before] = hermes_queue.replay(url=ledger.url, archive=tmp_path)
    await read_all(ledger)
    trim(ledger, NOW, interval_s=0, archive=ArchiveSink(tmp_path))
    [after] = hermes_queue.replay(url=ledger.url, archive=tmp_path)
    assert after == before
    assert after.members == (make_record(job),)


async def test_nothing_is_deleted_while_the_archive_cannot_be_written(ledger, tmp_path):
    publish(ledger, "a")
    await read_all(ledger)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        trim(ledger, NOW, interval_s=0, archive=ArchiveSink(tmp_path / "file"))
    assert ledger.client.xlen("hq:results") == 1
    assert trim(ledger, NOW, interval_s=0, archive=ArchiveSink(tmp_path / "dir")).entries == 1


async def test_a_run_id_that_no_directory_can_have_is_archived_like_others(ledger, tmp_path):
    long = "a" + ":b" * 99
    publish(ledger, "a", run_id=long)
    publish(ledger, "b")
    await read_all(ledger)
    archive = ArchiveSink(tmp_path / "archive")
    assert trim(ledger, NOW, interval_s=0, archive=archive).entries == 2
    archive.close()
    assert archived_runs(archive.directory) == [long, "run"]
    assert replayed(ledger, archive.directory) == ["a", "b"]
    assert replayed(ledger, archive.directory, run=long, stream=False) == ["a"]


class Choosy(ArchiveSink):
    """Takes all groups but those of some items."""

    bad = ("b",)

    def store(self, groups):
        for group in groups:
            if group.fields["instance_id"] in self.bad:
                raise HermesQueueError("it does not fit")
            super().store([group])


async def test_a_group_that_cannot_be_archived_does_not_hold_up_the_others(ledger, tmp_path):
    publish(ledger, *"abcd")
    await read_all(ledger)
    refused: dict[str, str] = {}
    archive = Choosy(tmp_path)
    done = trim(ledger, NOW, interval_s=0, archive=archive, refused=refused)
    assert done.entries == 3
    [(entry, why)] = refused.items()
    assert why.endswith(": it does not fit")
    assert [key.decode() for key, _ in ledger.client.xrange("hq:results")] == [entry]
    assert len(ledger.client.keys("hq:body:*")) == 1
    publish(ledger, "e")
    await read_all(ledger)
    assert trim(ledger, NOW, interval_s=0, archive=archive, refused=refused).entries == 1
    archive.bad = ()
    assert trim(ledger, NOW, interval_s=0, archive=archive, refused={}).entries == 1
    assert ledger.client.xlen("hq:results") == 0
    assert sorted(replayed(ledger, tmp_path)) == list("abcde")


async def test_many_groups_that_cannot_be_archived_hold_up_the_others_for_a_while_only(
    ledger, tmp_path
):
    publish(ledger, *"abcdefg")
    await read_all(ledger)
    refused: dict[str, str] = {}
    archive = Choosy(tmp_path)
    archive.bad = tuple("abcdef")
    for known in (3, 6):
        with pytest.raises(HermesQueueError, match="does not fit"):
            trim(ledger, NOW, interval_s=0, archive=archive, refused=refused)
        assert len(refused) == known
    assert trim(ledger, NOW, interval_s=0, archive=archive, refused=refused).entries == 1
    assert replayed(ledger, tmp_path, stream=False) == ["g"]


async def test_a_group_comes_once_when_a_worker_died_between_archive_and_trim(ledger, tmp_path):
    publish(ledger, "a")
    await read_all(ledger)

    class Dies(ArchiveSink):
        def store(self, groups):
            super().store(groups)
            raise HermesQueueError("killed")

    with pytest.raises(HermesQueueError):
        trim(ledger, NOW, interval_s=0, archive=Dies(tmp_path))
    assert replayed(ledger, tmp_path) == ["a"]
    trim(ledger, NOW, interval_s=0, archive=ArchiveSink(tmp_path))
    assert len(list(read_archive(tmp_path))) == 2
    assert replayed(ledger, tmp_path) == ["a"]


def test_a_torn_last_frame_hides_nothing_before_it(ledger, tmp_path):
    publish(ledger, "a", "b")
    archive = ArchiveSink(tmp_path)
    entries = ledger.client.xrange("hq:results")
    archive.store(stored_group(ledger.client, "hq:", raw) for _, raw in entries)
    [path] = tmp_path.rglob("*.groups")
    path.write_bytes(path.read_bytes()[:-7])
    assert [g.fields["instance_id"] for g in read_archive(tmp_path)] == ["a"]
    assert replayed(ledger, tmp_path) == ["a", "b"]


def test_filters_and_times_hold_for_past_groups_too(ledger, tmp_path):
    publish(ledger, "bad", score=0.0)
    publish(ledger, "none", score=None)
    time.sleep(0.01)  # finished is told in milliseconds
    publish(ledger, "good", score=1.0)
    assert replayed(ledger, tmp_path, min_mean=0.5) == ["good"]
    assert replayed(ledger, tmp_path, complete=True) == ["bad", "good"]
    last = max(g.finished for g in hermes_queue.replay(url=ledger.url, archive=tmp_path))
    assert replayed(ledger, tmp_path, since=last) == ["good"]


def test_a_group_whose_record_is_gone_is_named(ledger, tmp_path):
    gone, _ = publish(ledger, "gone", "there")
    ledger.client.delete(f"hq:body:{gone.trajectory_id}")
    with pytest.raises(BodyMissing, match=gone.trajectory_id):
        replayed(ledger, tmp_path)
    reported: list[BodyMissing] = []
    assert replayed(ledger, tmp_path, on_missing=reported.append) == ["there"]
    assert len(reported) == 1


def test_a_group_from_a_newer_version_is_refused(ledger, tmp_path):
    publish(ledger, "a")
    [(_, fields)] = ledger.client.xrange("hq:results")
    ledger.client.xadd("hq:results", {**fields, b"schema": b"9", b"group_id": b"run.new"})
    with pytest.raises(SchemaTooNew, match="upgrade hermes-queue"):
        replayed(ledger, tmp_path)
    assert json.loads(fields[b"members"])


async def test_a_host_whose_clock_is_behind_hides_nothing_that_is_trimmed_meanwhile(
    ledger, tmp_path
):
    publish(ledger, "a")
    await read_all(ledger)
    trim(ledger, NOW, interval_s=0, archive=ArchiveSink(tmp_path))
    publish(ledger, "b", "c")
    await read_all(ledger)
    found = hermes_queue.replay(url=ledger.url, archive=tmp_path)
    first = next(found)
    trim(ledger, NOW, interval_s=0, archive=ArchiveSink(tmp_path))
    for path in tmp_path.glob("run/*.groups"):
        os.utime(path, (1e9, 1e9))
    assert [first.instance_id, *(group.instance_id for group in found)] == ["a", "b", "c"]


async def test_two_workers_that_trim_at_once_archive_no_group_without_its_records(ledger, tmp_path):
    publish(ledger, "a", "b", "c")
    await read_all(ledger)

    class Slow(ArchiveSink):
        def store(self, groups):
            for group in groups:
                super().store([group])
                trim(ledger, NOW, interval_s=0, archive=ArchiveSink(tmp_path))

    trim(ledger, NOW, interval_s=0, archive=Slow(tmp_path))
    assert sorted(replayed(ledger, tmp_path)) == ["a", "b", "c"]


def test_a_time_without_a_time_zone_is_refused(ledger, tmp_path):
    with pytest.raises(ValueError, match="has no time zone"):
        list(replayed(ledger, tmp_path, since=datetime(2026, 1, 1)))  # noqa: DTZ001
