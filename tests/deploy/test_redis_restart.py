"""A restart of Redis under our users brings back all that was written before."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import redis
from guarded_redis import GuardedRedis
from stream_groups import publish
from worker_process import wait_until

from hermes_queue.broker.embedded import Embedded
from hermes_queue.ledger import Ledger


def contents(guarded: GuardedRedis) -> dict[str, object]:
    """Every key of ours and its value: as Redis packs it, but for sets, which have no order."""
    with redis.Redis.from_url(guarded.url("worker")) as client:
        return {
            key.decode(): client.smembers(key) if client.type(key) == b"set" else client.dump(key)
            for key in client.scan_iter("hq:*")
        }


@pytest.fixture
def restarted(tmp_path, redis_7):
    server = GuardedRedis(tmp_path / "restarted", redis_7)
    try:
        yield server.start()
    finally:
        server.close()


def test_what_scripts_and_transactions_have_written_is_read_back(restarted):
    with closing(Ledger.connect(url=restarted.url("worker"))) as ledger:
        publish(ledger, "r1")
        ledger.deployment_id()
        with ledger.client.pipeline() as pipe:
            pipe.set("hq:worker:one", "1").zadd("hq:workers", {"one": 1}).execute()
    before = contents(restarted)
    restarted.close()
    restarted.start()
    assert contents(restarted) == before


def crash(process: subprocess.Popen[bytes], directory: Path) -> Path:
    """Kill Redis and tear the last transaction of its AOF; returns the file."""
    process.kill()
    process.wait()
    [aof] = directory.glob("appendonlydir/*.incr.aof")
    os.truncate(aof, aof.stat().st_size - 3)
    return aof


def write_a_transaction(client: redis.Redis) -> None:
    with client.pipeline() as pipe:
        pipe.set("hq:worker:one", "1").set("hq:worker:two", "2").execute()


def test_what_follows_a_torn_transaction_outlasts_the_next_crash(restarted):
    wait_until("the empty AOF is written anew", lambda: has_generation(restarted.directory, 2))
    with restarted.client("worker") as client:
        write_a_transaction(client)
    crash(restarted.process, restarted.directory)
    restarted.start()
    wait_until("the AOF is written anew", lambda: has_generation(restarted.directory, 3))
    with restarted.client("worker") as client:
        client.set("hq:worker:three", "3")
    restarted.process.kill()
    restarted.process.wait()
    restarted.start()
    with restarted.client("worker") as client:
        assert client.get("hq:worker:three") == "3"


def has_generation(directory: Path, number: int) -> bool:
    """Whether that is the only generation of the AOF."""
    found = [path.name for path in directory.glob("appendonlydir/*.incr.aof")]
    return found == [f"appendonly.aof.{number}.incr.aof"]


@pytest.mark.fleet
def test_the_same_holds_in_an_embedded_run(tmp_path, monkeypatch, redis_7):
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", redis_7, prepend=os.pathsep)
    run = Embedded(run_id="torn", concurrency=1)
    run._state.mkdir(parents=True)
    try:
        run._start_redis()
        with redis.Redis.from_url(run.redis_url) as client:
            write_a_transaction(client)
        crash(run._redis, run._state / "redis")
        run._start_redis()
        with redis.Redis.from_url(run.redis_url) as client:
            client.set("hq:worker:three", "3")
        run._redis.kill()
        run._redis.wait()
        run._start_redis()
        with redis.Redis.from_url(run.redis_url) as client:
            assert client.get("hq:worker:three") == b"3"
    finally:
        run.stop()


@pytest.mark.fleet
def test_still_nobody_gets_in_without_a_user(restarted):
    with redis.Redis(port=restarted.port) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    for password in ("", "default", "@DEFAULT@"):
        with (
            redis.Redis(port=restarted.port, username="default", password=password) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
