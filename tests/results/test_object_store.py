"""Large bodies lie in an object store; readers fetch them and check what they fetched."""

from __future__ import annotations

import asyncio
import random
import signal
import string
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from records import make_job, make_record
from redis_server import RedisServer
from worker_process import wait_until

import hermes_queue
from hermes_queue.bodies import access, codec
from hermes_queue.bodies.store import ClaimCheck, ObjectLost, ObjectStore, fetch, is_claim
from hermes_queue.errors import ConfigurationError, SchemaTooNew, StoreUnavailable
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.fleet.objects import NotedObject, note_object
from hermes_queue.models import Message
from hermes_queue.results import reader
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings, StoreSettings
from workers.bodies import Bodies
from workers.record import encoded

SMALL = StoreSettings(from_bytes=1024, grace_s=0.001)
LONG = "".join(random.Random(0).choices(string.ascii_letters, k=5000))
"""Compresses to more than a kilobyte."""


@pytest.fixture
def ledger(redis_server: RedisServer):
    with redis_server.client(decode_responses=False) as client:
        yield Ledger(client, prefix="hq:", url=redis_server.url)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def bodies(directory: Path) -> Bodies:
    return Bodies(ObjectStore(directory.as_uri()), SMALL, 8 << 20)


def publish(ledger: Ledger, bodies: Bodies, *jobs, text: str = LONG):
    records = []
    for job in ledger.enqueue(jobs[0].run_id, jobs, config={}):
        ledger.begin(job.trajectory_id, 1, owner="w", lease_s=60, nonce="n")
        record = make_record(job).model_copy(
            update={"messages": (Message(role="user", content=text),)}
        )
        body = codec.encode_record(record)
        bodies.publish_found(ledger, record, body, owner="w", finished_ttl_s=60)
        records.append(record)
    return records


async def read(url: str, group: str = "trainer", **options):
    found = []
    async for delivered in hermes_queue.consume(group, url=url, idle_timeout_s=0.2, **options):
        found.append(delivered)
        await delivered.ack()
    return found


def objects(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/[!.]*") if path.is_file())


async def test_redis_holds_the_claim_and_a_reader_gets_the_record(
    ledger, bodies, directory, redis_server
):
    jobs = [make_job(sample=n, size=2) for n in range(2)]
    records = publish(ledger, bodies, *jobs)
    held = [ledger.client.get(f"hq:body:{job.trajectory_id}") for job in jobs]
    assert all(is_claim(body) for body in held)
    assert int(ledger.client.get("hq:results:bytes")) == sum(map(len, held))
    assert len(objects(directory)) == 2
    [group] = await read(redis_server.url)
    assert list(group.members) == records


def test_a_small_body_stays_in_redis(ledger, bodies, directory):
    publish(ledger, bodies, make_job(), text="short")
    assert not is_claim(ledger.client.get(f"hq:body:{make_job().trajectory_id}"))
    assert objects(directory) == []


def test_readers_without_asyncio_and_replay_get_the_record(ledger, bodies, redis_server, tmp_path):
    [record] = publish(ledger, bodies, make_job())
    with hermes_queue.consume_sync("t", url=redis_server.url, idle_timeout_s=0.2) as groups:
        assert [group.members for group in groups] == [(record,)]
    replayed = hermes_queue.replay(url=redis_server.url, archive=tmp_path / "none")
    assert [group.members for group in replayed] == [(record,)]


@pytest.mark.parametrize(
    ("harm", "expected"), [("gone", "is gone"), ("cut", "is damaged"), ("other", "is damaged")]
)
async def test_a_lost_object_is_a_dead_letter_and_the_next_group_is_read(
    ledger, bodies, directory, redis_server, harm, expected
):
    publish(ledger, bodies, make_job(instance="a"))
    [path] = objects(directory)
    data = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    publish(ledger, bodies, make_job(instance="b"))
    assert [group.instance_id for group in await read(redis_server.url)] == ["b"]
    [(_, letter)] = ledger.client.xrange("hq:dead")
    assert letter[b"cause"] == b"undeliverable"
    assert expected in letter[b"reason"].decode()
    assert path.name in letter[b"reason"].decode()
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 0


def test_replay_names_the_object_that_is_lost(ledger, bodies, directory, redis_server, tmp_path):
    publish(ledger, bodies, make_job())
    [path] = objects(directory)
    path.unlink()
    missing = []
    options = {"url": redis_server.url, "archive": tmp_path / "none"}
    assert list(hermes_queue.replay(**options, on_missing=missing.append)) == []
    assert path.name in str(missing[0])


async def test_a_store_that_is_away_is_waited_for(
    ledger, bodies, directory, redis_server, monkeypatch, caplog
):
    [record] = publish(ledger, bodies, make_job())
    hidden = directory.rename(directory.with_name("hidden"))
    directory.write_text("not a directory")  # what is below it is no missing file

    async def returns(_seconds: float) -> None:
        directory.unlink()
        hidden.rename(directory)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": returns}))
        [group] = await read(redis_server.url)
    assert group.members == (record,)
    assert [r.action for r in caplog.records if hasattr(r, "action")] == ["store_wait"]
    assert not ledger.client.exists("hq:dead")


async def test_a_directory_that_is_not_mounted_has_lost_nothing(ledger, bodies, directory):
    [record] = publish(ledger, bodies, make_job())
    claim = ClaimCheck.parse(ledger.client.get(f"hq:body:{record.trajectory_id}"))
    directory.rename(directory.with_name("hidden"))
    directory.mkdir()
    with pytest.raises(StoreUnavailable, match="mounted"):
        fetch(claim)


async def test_without_fsspec_a_reader_is_told_what_to_install(
    ledger, bodies, redis_server, monkeypatch
):
    [record] = publish(ledger, bodies, make_job())
    claim = ClaimCheck("s3://bucket/body", "0" * 64, 5)
    ledger.client.set(f"hq:body:{record.trajectory_id}", claim.encode())
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hermes-queue\[store\]'"):
        await read(redis_server.url)
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 1


def test_a_scheme_nobody_knows_is_a_clear_error():
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        fetch(ClaimCheck("nosuch://bucket/body", "0" * 64, 5))


def test_the_archive_holds_the_bodies_themselves(ledger, bodies, directory, redis_server, tmp_path):
    [record] = publish(ledger, bodies, make_job())
    with hermes_queue.consume_sync("t", url=redis_server.url, idle_timeout_s=0.2) as groups:
        for group in groups:
            group.ack()
    archive = ArchiveSink(tmp_path / "archive")
    now = ResultSettings(retention_s=0)
    assert trim(ledger, now, interval_s=0, archive=archive).entries == 1
    archive.close()
    assert [path.name for path in objects(directory)]  # they may still be read
    assert bodies.remove_unneeded(ledger, lambda: False) == 1
    assert objects(directory) == []
    assert not ledger.client.exists("hq:objects", "hq:objects:doomed", "hq:results:bytes") - 1
    again = hermes_queue.replay(url=redis_server.url, archive=tmp_path / "archive")
    assert [group.members for group in again] == [(record,)]


def test_nothing_is_trimmed_while_the_archive_cannot_fetch(
    ledger, bodies, directory, redis_server, tmp_path
):
    publish(ledger, bodies, make_job())
    with hermes_queue.consume_sync("t", url=redis_server.url, idle_timeout_s=0.2) as groups:
        for group in groups:
            group.ack()
    directory.rename(directory.with_name("hidden"))
    directory.write_text("not a directory")
    archive = ArchiveSink(tmp_path / "archive")
    with pytest.raises(StoreUnavailable):
        trim(ledger, ResultSettings(retention_s=0), interval_s=0, archive=archive)
    assert ledger.client.xlen("hq:results") == 1


def test_a_lost_object_does_not_stop_the_trimming(
    ledger, bodies, directory, redis_server, tmp_path
):
    publish(ledger, bodies, make_job())
    with hermes_queue.consume_sync("t", url=redis_server.url, idle_timeout_s=0.2) as groups:
        for group in groups:
            group.ack()
    objects(directory)[0].unlink()
    archive = ArchiveSink(tmp_path / "archive")
    assert trim(ledger, ResultSettings(retention_s=0), interval_s=0, archive=archive).entries == 1
    archive.close()


def test_an_object_that_a_body_names_is_kept(ledger, bodies, directory):
    publish(ledger, bodies, make_job())
    for _ in range(3):
        assert bodies.remove_unneeded(ledger, lambda: False) == 0
    assert len(objects(directory)) == 1


def test_an_attempt_that_came_too_late_leaves_no_object(ledger, bodies, directory):
    [record] = publish(ledger, bodies, make_job())
    late = record.model_copy(update={"attempt": 2})
    body = codec.encode_record(late)
    verdict = bodies.publish_found(ledger, late, body, owner="w", finished_ttl_s=60)
    assert (verdict, len(objects(directory))) == ("final", 2)
    assert bodies.remove_unneeded(ledger, lambda: False) == 1
    [kept] = objects(directory)
    assert (
        kept.name == ClaimCheck.parse(ledger.client.get(f"hq:body:{record.trajectory_id}")).sha256
    )


def test_repeating_a_publication_overwrites_nothing(ledger, bodies, directory):
    [record] = publish(ledger, bodies, make_job())
    [path] = objects(directory)
    before = path.stat().st_ino
    verdict = bodies.publish_found(
        ledger, record, codec.encode_record(record), owner="w", finished_ttl_s=60
    )
    assert verdict == "final"
    assert [(found, found.stat().st_ino) for found in objects(directory)] == [(path, before)]


def test_a_half_written_object_is_written_again(ledger, bodies, directory):
    record = make_record(make_job()).model_copy(
        update={"messages": (Message(role="user", content=LONG),)}
    )
    body = codec.encode_record(record)
    claim = ClaimCheck.parse(bodies.stored(ledger, record, body))
    [path] = objects(directory)
    path.write_bytes(body[:10])
    assert ClaimCheck.parse(bodies.stored(ledger, record, body)) == claim
    assert fetch(claim) == body


def test_an_object_that_was_deleted_before_its_publication_is_stored_again(
    ledger, bodies, directory, monkeypatch
):
    """The record waited in its spool for longer than the grace."""
    publish_claim, verdicts = Ledger.publish, []

    def delayed(self, *args, **kwargs):
        if not verdicts:
            assert bodies.remove_unneeded(ledger, lambda: False) == 1
        verdicts.append(publish_claim(self, *args, **kwargs))
        return verdicts[-1]

    monkeypatch.setattr(Ledger, "publish", delayed)
    [record] = publish(ledger, bodies, make_job())
    assert verdicts == ["unstored", "group"]
    claim = ClaimCheck.parse(ledger.client.get(f"hq:body:{record.trajectory_id}"))
    assert codec.decode_record(fetch(claim)) == record


def test_while_an_object_is_being_deleted_its_bytes_go_elsewhere(ledger, bodies, directory):
    record = make_record(make_job()).model_copy(
        update={"messages": (Message(role="user", content=LONG),)}
    )
    body = codec.encode_record(record)
    first = ClaimCheck.parse(bodies.stored(ledger, record, body))
    ledger.client.zadd("hq:objects:doomed", {f"{record.trajectory_id} {first.url}": 9e9})
    second = ClaimCheck.parse(bodies.stored(ledger, record, body))
    assert (second.sha256, second.url) == (first.sha256, f"{first.url}-1")


def test_what_a_writer_left_that_was_killed_half_way_is_deleted(ledger, bodies, directory):
    """Killed when the bytes are there and do not have their name yet."""
    record = make_record(make_job())
    url = f"{directory.as_uri()}/run/name"
    assert note_object(ledger, NotedObject(record.trajectory_id, url), grace_s=0.0)
    writer = (
        "import os, signal, sys; from hermes_queue.bodies.access import access; "
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL); "
        "access(sys.argv[1]).write(sys.argv[1], bytes(2000))"
    )
    done = subprocess.run([sys.executable, "-c", writer, url], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((directory / "run").iterdir())) == 1
    assert bodies.remove_unneeded(ledger, lambda: False) == 1
    assert not list(directory.glob("run*"))
    assert not ledger.client.exists("hq:objects", "hq:objects:doomed")


def test_a_directory_that_is_removed_while_another_object_is_written_is_made_again(
    tmp_path, monkeypatch
):
    store = ObjectStore(f"file://{tmp_path}")
    last, new = store.place("run", "a" * 64), store.place("run", "b" * 64)
    store.put(last, b"last")
    write = access.replaced

    def removed_meanwhile(path, draft):
        monkeypatch.undo()
        store.remove(last)
        return write(path, draft)

    monkeypatch.setattr(access, "replaced", removed_meanwhile)
    assert fetch(store.put(new, b"new")) == b"new"


def test_objects_of_a_purged_run_go_with_their_bodies(ledger, bodies, directory):
    """Of a group whose producer never sent the rest; what is published stays for its readers."""
    publish(ledger, bodies, make_job(instance="whole"))
    [published] = objects(directory)
    [lone] = publish(ledger, bodies, make_job(instance="half", size=2))
    runs = Runs(ledger)
    runs.cancel(lone.run_id)
    runs.purge(lone.run_id)
    assert bodies.remove_unneeded(ledger, lambda: False) == 0  # it may still be wanted
    assert 0 < ledger.client.ttl(f"hq:body:{lone.trajectory_id}")
    ledger.client.pexpire(f"hq:body:{lone.trajectory_id}", 0)
    wait_until("it is removed", lambda: bodies.remove_unneeded(ledger, lambda: False) == 1)
    assert objects(directory) == [published]


def test_objects_of_another_store_are_left_alone(ledger, bodies):
    other = NotedObject("run.i.0", "s3://other/run/object")
    assert note_object(ledger, other, grace_s=0.0)
    assert bodies.remove_unneeded(ledger, lambda: False) == 0
    assert ledger.client.zcard("hq:objects") == 1


def test_a_claim_from_a_newer_version_is_refused():
    with pytest.raises(SchemaTooNew, match="upgrade"):
        ClaimCheck.parse(b"hermes-queue claim 2\n{}")


@pytest.mark.parametrize("stored", [b"hermes-queue claim 1\n{}", b"hermes-queue claim x"])
def test_a_damaged_claim_is_no_body(stored):
    with pytest.raises(ValueError, match="damaged claim"):
        ClaimCheck.parse(stored)


def test_a_claim_of_absurd_size_is_not_fetched(directory):
    with pytest.raises(ObjectLost, match="declares"):
        fetch(ClaimCheck((directory / "x").as_uri(), "0" * 64, 1 << 60))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("memory://x", "one process"),
        ("just/a/path", "must be a URL"),
        ("s3://", "must be a URL"),
        ("file://relative", "absolute"),
        ("sftp://me:secret@host/x", "no password"),
        ('s3://b/"', "ASCII"),
    ],
)
def test_an_unusable_url_is_refused(url, expected):
    with pytest.raises(ValueError, match=expected):
        StoreSettings(url=url)


def test_files_are_refused_where_readers_may_be_on_other_hosts(directory):
    url = directory.as_uri()
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_STORE_SHARED"):
        ObjectStore.from_settings(StoreSettings(url=url), "redis://redis:6379/0")
    assert ObjectStore.from_settings(StoreSettings(url=url, shared=True), "redis://redis:6379/0")
    assert ObjectStore.from_settings(StoreSettings(url=url), "unix:///run/redis.sock")


def test_a_worker_whose_store_needs_a_library_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigurationError, match="pip install"):
        ObjectStore.from_settings(StoreSettings(url="s3://bucket/x"), "redis://redis:6379/0")


def test_a_run_id_cannot_leave_the_store():
    place = ObjectStore("file:///srv/bodies").place("a/../../b::c", "hash")
    assert place == "file:///srv/bodies/a~..~..~b~~c/hash"


def test_a_record_above_the_cap_of_redis_fails_and_says_what_to_do():
    job = make_job()
    large = random.Random(0).randbytes(9 << 20).hex()  # zstd halves hexadecimal digits
    record = make_record(job).model_copy(
        update={"messages": (Message(role="user", content=large),)}
    )
    inline = Bodies(None, SMALL, ResultSettings().inline_max_bytes)
    travels, body = encoded(record, inline.max_bytes)
    assert (travels.score, travels.status) == (None, "failed")
    assert "HERMES_QUEUE_STORE_URL" in travels.failure.message
    assert f"the cap is {8 << 20}" in travels.failure.message
    assert codec.decode_record(body) == travels


def test_with_a_store_larger_records_travel(bodies):
    assert bodies.max_bytes == 128 << 20
