"""Finished records on disk survive their worker."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from records import make_job, make_record
from redis_server import RedisServer

from hermes_queue.bodies import codec
from hermes_queue.errors import RedisFull, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.accounts.goodput import goodput_of_run
from workers.runtime import Runtime
from workers.spool import SHARED_SUFFIX, SUFFIX, Spool
from workers.upkeep.quarantine import boot_id
from workers.upkeep.recovery import publish_leftovers


def leave_behind(root: Path, owner: str, trajectory_id: str, body: bytes) -> None:
    """Spool a record in a process that is then killed."""
    (root / "body").write_bytes(body)
    script = (
        "import sys, os, signal, pathlib\n"
        "from workers.spool import Spool\n"
        "root, owner, tid = sys.argv[1:]\n"
        "Spool(pathlib.Path(root), 'd', owner).put(tid, (pathlib.Path(root)/'body').read_bytes())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(root), owner, trajectory_id])
    assert killed.returncode == -9


def leave_together(root: Path, owner: str, bodies: dict[str, bytes]) -> None:
    """Leave records in one file, as a process does that is killed."""
    spool = Spool(root, "d", owner)
    assert len({each.path for each in spool.put_all(list(bodies.items()))}) == 1
    os.close(spool._lock)


def test_a_record_of_a_killed_worker_is_found_by_the_next_one(tmp_path):
    leave_behind(tmp_path, "dead", "run.a.0", b"body")
    spool = Spool(tmp_path, "d", "alive")
    [record] = list(spool.leftovers())
    assert (record.owner, record.body()) == ("dead", b"body")


def test_records_of_a_living_worker_are_left_alone(tmp_path):
    first = Spool(tmp_path, "d", "first")
    first.put("run.a.0", b"body")
    assert list(Spool(tmp_path, "d", "second").leftovers()) == []


def test_another_deployments_records_are_left_alone(tmp_path):
    leave_behind(tmp_path, "dead", "run.a.0", b"body")
    assert list(Spool(tmp_path, "other", "alive").leftovers()) == []


def test_a_spool_that_is_empty_leaves_no_directory(tmp_path):
    spool = Spool(tmp_path, "d", "w")
    spool.put("run.a.0", b"body").drop()
    spool.close()
    assert not list(tmp_path.glob("*/w"))


def test_a_full_disk_leaves_no_half_record(tmp_path):
    spool = Spool(tmp_path, "d", "w")
    (in_the_way,) = tmp_path.glob("*/w")
    (in_the_way / "x.record").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        spool.put("x", b"body")
    assert not list(tmp_path.rglob("*.part"))


def test_a_record_is_kept_under_an_id_that_no_file_can_have(tmp_path):
    spool = Spool(tmp_path, "d", "w")
    for trajectory_id in ("run.a" + "/" * 251, "x" * 241, "x" * 248, "x" * 256):
        record = spool.put(trajectory_id, trajectory_id.encode())
        assert record.body() == trajectory_id.encode()
    assert spool.count() == 4
    record.set_aside()
    assert spool.count() == 3


def test_records_that_are_finished_together_share_a_file_which_goes_with_the_last(
    tmp_path, monkeypatch
):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(handle) or sync(handle))
    spool = Spool(tmp_path, "d", "w")
    records = spool.put_all([(f"run.a.{n}", b"body %d" % n) for n in range(20)])
    assert len(synced) == 2, "the file and its directory"
    assert [record.body() for record in records] == [b"body %d" % n for n in range(20)]
    assert spool.count() == 20
    first, *others = records
    for record in others:
        record.drop()
        record.drop()  # the answer to its publication was lost
    assert (spool.count(), first.path.exists()) == (1, True)
    first.drop()
    spool.close()
    assert not list(tmp_path.glob("*/w"))


def test_large_records_do_not_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("workers.spool.SHARED_BYTES", 100)
    spool = Spool(tmp_path, "d", "w")
    records = spool.put_all([(f"run.a.{n}", b"x" * 60) for n in range(5)])
    assert [record.body() for record in records] == [b"x" * 60] * 5
    assert len({record.path for record in records}) > 1


def test_a_shared_file_of_a_dead_worker_is_read_where_the_last_look_ended(tmp_path):
    bodies = {f"run.a.{n}": b"body %d" % n for n in range(3)}
    leave_together(tmp_path, "dead", bodies)
    spool = Spool(tmp_path, "d", "alive")
    for body in bodies.values():
        record = next(spool.leftovers())
        assert (record.owner, record.body()) == ("dead", body)
        record.drop()
    assert list(spool.leftovers()) == []
    assert not list(tmp_path.glob("*/dead"))


def test_a_worker_that_dies_while_it_reads_a_shared_file_leaves_all_of_it(tmp_path):
    leave_together(tmp_path, "dead", {"run.a.0": b"0", "run.a.1": b"1"})
    next(Spool(tmp_path, "d", "dies").leftovers()).drop()
    found = Spool(tmp_path, "d", "alive").leftovers()
    assert [record.body() for record in found] == [b"0", b"1"], "Redis answers `final` to the first"


def test_a_record_of_a_shared_file_is_set_aside_in_a_file_of_its_own(tmp_path):
    leave_together(tmp_path, "dead", {"run.a.0": b"0", "run.a.1": b"1"})
    spool = Spool(tmp_path, "d", "alive")
    first, second = spool.leftovers()
    kept = second.set_aside()
    assert (kept.name, kept.read_bytes()) == ("run.a.1.unknown", b"1")
    first.drop()
    assert list(spool.leftovers()) == []
    kept.rename(kept.with_suffix(SUFFIX))
    assert [record.body() for record in spool.leftovers()] == [b"1"]


def test_a_disk_without_room_for_all_takes_what_it_can(tmp_path, monkeypatch):
    write = Path.write_bytes

    def on_a_small_disk(path: Path, data: bytes) -> int:
        if len(data) > 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", on_a_small_disk)
    spool = Spool(tmp_path, "d", "w")
    small, large, other = spool.put_all([("a.b.0", b"x"), ("a.b.1", b"x" * 60), ("a.b.2", b"y")])
    assert (small.body(), other.body(), spool.count()) == (b"x", b"y", 2)
    assert isinstance(large, OSError)
    assert not list(tmp_path.rglob("*.part"))


def test_a_shared_file_that_cannot_be_read_stays_for_a_person(tmp_path, redis_server: RedisServer):
    leave_together(tmp_path, "dead", {"run.a.0": b"0", "run.a.1": b"1"})
    [path] = tmp_path.rglob(f"*{SHARED_SUFFIX}")
    path.write_bytes(b"junk")
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        spool = Spool(tmp_path, "d", "alive")
        runtime = Runtime(owner="alive", ledger=ledger, backend=None, spool=spool)  # type: ignore[arg-type]
        assert publish_leftovers(runtime) == 0
        runtime.executor.shutdown()
    assert path.read_bytes() == b"junk"


def test_a_dead_child_is_found_again_until_its_parent_has_reported_it(
    tmp_path, redis_server: RedisServer
):
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        ledger.beat("parent", {}, ttl_s=60, boot_id=boot_id())
        ledger.beat("child", {}, ttl_s=60, boot_id=boot_id(), parent="parent")
        os.close(Spool(tmp_path, "d", "child")._lock)
        [lock] = tmp_path.rglob("child/lock")
        runtime = Runtime(
            owner="alive", ledger=ledger, backend=None, spool=Spool(tmp_path, "d", "alive")
        )  # type: ignore[arg-type]
        assert publish_leftovers(runtime) == 0
        assert lock.exists()
        assert len(ledger.client.zrange("hq:workers", 0, -1)) == 2
        ledger.worker_ended("child", boot_id=boot_id(), witnessed=True)
        assert publish_leftovers(runtime) == 0
        assert not lock.exists()
        runtime.executor.shutdown()


def test_the_next_worker_publishes_what_a_dead_one_had_finished_and_takes_back_the_rest(
    tmp_path, redis_server: RedisServer
):
    job, other = jobs = [make_job(instance=f"i{n}") for n in range(2)]
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        ledger.enqueue("run", jobs, config={})
        ledger.beat("dead", {}, ttl_s=60, boot_id=boot_id())
        for each in jobs:
            ledger.begin(each.trajectory_id, 1, owner="dead", lease_s=3600, nonce="n")
        leave_behind(tmp_path, "dead", job.trajectory_id, codec.encode_record(make_record(job)))
        spool = Spool(tmp_path, "d", "alive")
        runtime = Runtime(owner="alive", ledger=ledger, backend=None, spool=spool)  # type: ignore[arg-type]
        assert publish_leftovers(runtime) == 1
        assert ledger.run_status("run").finished == 1
        assert list(spool.leftovers()) == []
        sweep = {"interval_s": 0.0, "gap_s": 60.0, "grace_s": 5.0}
        assert ledger.sweep(**sweep) + ledger.sweep(**sweep) == [other.trajectory_id]
        assert ledger.workers() == []
        runtime.executor.shutdown()


def test_the_time_of_a_dead_worker_stays_lost_when_the_next_one_publishes_its_record(
    tmp_path, redis_server: RedisServer
):
    job = make_job()
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        ledger.enqueue("run", [job], config={})
        ledger.begin(job.trajectory_id, 1, owner="dead", lease_s=3600, nonce="n")
        client.hincrbyfloat(f"hq:traj:{job.trajectory_id}", "begun", -100)
        client.zadd("hq:leases", {job.trajectory_id: 0})
        sweep = {"interval_s": 0.0, "gap_s": 60.0, "grace_s": 5.0}
        assert ledger.sweep(**sweep) + ledger.sweep(**sweep) == [job.trajectory_id]
        leave_together(tmp_path, "dead", {job.trajectory_id: codec.encode_record(make_record(job))})
        spool = Spool(tmp_path, "d", "alive")
        runtime = Runtime(owner="alive", ledger=ledger, backend=None, spool=spool)  # type: ignore[arg-type]
        assert publish_leftovers(runtime) == 1
        good = goodput_of_run(ledger, "run")
        assert good.seconds == {"death": pytest.approx(100, abs=30)}
        runtime.executor.shutdown()


def test_an_unreadable_leftover_stays_for_a_person(tmp_path, redis_server: RedisServer):
    leave_behind(tmp_path, "dead", "run.a.0", b"junk")
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        spool = Spool(tmp_path, "d", "alive")
        runtime = Runtime(owner="alive", ledger=ledger, backend=None, spool=spool)  # type: ignore[arg-type]
        assert publish_leftovers(runtime) == 0
        assert [record.body() for record in spool.leftovers()] == [b"junk"]
        runtime.executor.shutdown()


class AwayLedger:
    """A Redis that answers nothing, after a while."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error
        self.asked = 0

    def publish(self, *_: object, **__: object) -> str:
        self.asked += 1
        raise self.error("away")


@pytest.mark.parametrize("error", [RedisUnavailable, RedisFull])
def test_a_redis_that_is_away_is_asked_once_and_not_once_per_record(tmp_path, error):
    """The thread that asks renews the leases too."""
    jobs = [make_job(instance=f"i{n}") for n in range(3)]
    for job in jobs:
        body = codec.encode_record(make_record(job))
        leave_behind(tmp_path, f"dead-{job.instance_id}", job.trajectory_id, body)
    spool, away = Spool(tmp_path, "d", "alive"), AwayLedger(error)
    runtime = Runtime(owner="alive", ledger=away, backend=None, spool=spool)  # type: ignore[arg-type]
    assert publish_leftovers(runtime) == 0
    assert away.asked == 1
    assert len(list(spool.leftovers())) == 3
    runtime.executor.shutdown()


def test_many_leftovers_are_published_in_portions(tmp_path, redis_server: RedisServer):
    jobs = [make_job(instance=f"i{n}") for n in range(2)]
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        ledger.enqueue("run", jobs, config={})
        for job in jobs:
            leave_behind(tmp_path, "dead", job.trajectory_id, codec.encode_record(make_record(job)))
        spool = Spool(tmp_path, "d", "alive")
        runtime = Runtime(owner="alive", ledger=AwayLedger(OSError), backend=None, spool=spool)  # type: ignore[arg-type]
        assert [publish_leftovers(runtime, ledger, most_s=0.0) for _ in range(3)] == [1, 1, 0]
        runtime.executor.shutdown()
