"""A Redis of the user's, a worker in one shell, a producer in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer
from worker_process import WorkerProcess
from zygote import run_forked

import hermes_queue
from hermes_queue.ledger import Ledger, Runs


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    return redis_server


@pytest.fixture
def produce(server: RedisServer, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*flags: str, url: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {**os.environ, "HERMES_QUEUE_REDIS_URL": url or server.url, **environment}
        return run_forked("producers.gsm8k", *flags, environment=settings)

    return run


@pytest.fixture
def worker(server: RedisServer, tmp_path: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess(server.url, tmp_path / "workers", concurrency=4).start()
    yield process
    process.close()


async def consumed(url: str, run_id: str) -> list[hermes_queue.ScoredTrajectory]:
    found = []
    async for group in hermes_queue.consume("trainer", url=url, run=run_id, idle_timeout_s=1):
        found.extend(group.members)
        await group.ack()
    return found


def test_a_worker_says_what_it_serves_once_it_is_ready(worker):
    worker.wait_for_log("ready: lanes train; backend local; 4 slots; stages all")


async def test_the_file_and_the_stream_hold_the_same_records(worker, server, produce, tmp_path):
    out = tmp_path / "out.jsonl"
    done = produce("--items", "3", "--group-size", "2", "--run-id", "r1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    records = await consumed(server.url, "r1")
    assert len(lines) == 6
    assert sorted(lines, key=lambda r: r["trajectory_id"]) == sorted(
        (json.loads(r.to_json()) for r in records), key=lambda r: r["trajectory_id"]
    )
    assert {r.score for r in records} == {1.0}


def test_without_follow_the_producer_only_enqueues(server, produce):
    done = produce("--items", "3", "--run-id", "r1")
    assert done.returncode == 0, done.stderr
    ledger = Ledger.connect(url=server.url)
    assert ledger.run_status("r1").queued == 3
    ledger.close()


def test_running_the_same_run_id_again_enqueues_only_what_is_missing(server, produce):
    produce("--items", "2", "--run-id", "r1")
    done = produce("--items", "5", "--run-id", "r1")
    assert done.returncode == 0, done.stderr
    assert "3" in done.stderr + done.stdout
    ledger = Ledger.connect(url=server.url)
    assert ledger.run_status("r1").total == 5
    ledger.close()


def test_two_producers_of_one_run_at_once_enqueue_each_job_once(server, produce):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: produce("--items", "12", "--run-id", "r1"), range(2)))
    assert [done.returncode for done in both] == [0, 0]
    ledger = Ledger.connect(url=server.url)
    assert ledger.run_status("r1").total == 12
    ledger.close()


def test_nothing_but_listed_keys_stays_without_expiry(worker, server, produce):
    done = produce("--items", "2", "--follow", "--run-id", "r1")
    assert done.returncode == 0, done.stderr
    listed = (
        "hq:deployment",
        "hq:results",
        "hq:dead",
        "hq:totals",
        "hq:body:",
        "hq:consumer-group:",
        "hq:_kombu.",
        "hq:goodput",
        "hq:sched",
        "hq:unacked",
    )
    with server.client() as client:
        lasting = [key for key in client.scan_iter("*") if client.ttl(key) == -1]
    assert [key for key in lasting if not key.startswith(listed)] == []


def test_an_unreachable_url_is_an_error_not_a_fallback(produce):
    done = produce("--items", "1", url="redis://127.0.0.1:1/0")
    assert done.returncode == 4
    assert "cannot be reached" in done.stderr


def test_a_wrong_password_names_the_variable_and_hides_the_password(server, produce):
    with server.client() as client:
        client.config_set("requirepass", "right")
    done = produce("--items", "1", url=server.url.replace("unix://", "unix://:hunter2@"))
    assert done.returncode == 4
    assert "HERMES_QUEUE_REDIS_URL" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_redis_without_room_is_a_clear_error_and_nothing_is_half_enqueued(server, produce):
    with server.client() as client:
        client.config_set("maxmemory", 1)
        done = produce("--items", "1", "--run-id", "r1")
        assert done.returncode == 4
        assert "maxmemory" in done.stderr
        client.config_set("maxmemory", 0)
    assert produce("--items", "1", "--run-id", "r1").returncode == 0


def test_a_worker_without_isolation_exits_3_with_the_fix(server, tmp_path):
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "bwrap").write_text(
        "#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n"
    )
    (broken / "bwrap").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "hermes_queue", "worker"],
        env={
            **os.environ,
            "HERMES_QUEUE_REDIS_URL": server.url,
            "PATH": f"{broken}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3
    assert "HERMES_QUEUE_LOCAL_ISOLATION=none" in done.stderr + done.stdout


def test_an_expected_score_that_does_not_hold_is_exit_1_and_names_the_rows(worker, produce):
    done = produce("--items", "2", "--agent", "nop", "--follow", "--expect-score", "1")
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if "score 0.0, expected 1" in line]
    assert line.count(" sample 0") == 2  # the cause is the same, so it is said once


def test_an_expected_score_without_results_is_a_usage_error(produce):
    done = produce("--items", "1", "--expect-score", "1")
    assert done.returncode == 2
    assert "--follow" in done.stderr


@pytest.mark.fleet
def test_a_full_backlog_makes_a_following_producer_wait_for_results_not_for_ever(worker, produce):
    # Four at once, and these too slow to be done before the producer has come to the limit.
    slow = ("--agent", "slow", "--agent-param", "seconds=2", "--agent-param", "turns=1")
    flags = ("--items", "12", "--follow", *slow)
    done = produce(*flags, HERMES_QUEUE_PRODUCER_BACKLOG_MAX="4", HERMES_QUEUE_PRODUCER_BATCH="2")
    assert done.returncode == 0, done.stderr
    assert "jobs wait for workers; enqueueing continues" in done.stderr
    assert "12 scored" in done.stdout


def test_a_run_is_made_again_from_its_lock(server, produce, tmp_path):
    path = tmp_path / "r1.lock.json"
    made = produce("--items", "3", "--group-size", "2", "--agent", "nop", "--run-id", "r1")
    assert made.returncode == 0, made.stderr
    environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": server.url}
    words = ("run", "lock", "r1", "--out", str(path))
    kept = run_forked("hermes_queue.cli", *words, environment=environment)
    assert kept.returncode == 0, kept.stderr
    again = produce("--from-lock", str(path), "--run-id", "r2")
    assert again.returncode == 0, again.stderr
    ledger = Ledger.connect(url=server.url)
    assert ledger.run_status("r2").total == 6
    assert Runs(ledger).get("r2").config == Runs(ledger).get("r1").config
    ledger.close()
    path.write_text(path.read_text().replace('"count": 3', '"count": 4'))
    other = produce("--from-lock", str(path))
    assert other.returncode == 2
    assert "this run would be another one: rows: 3 of gsm8k.jsonl" in other.stderr
    unknown = run_forked("hermes_queue.cli", "run", "lock", "r9", environment=environment)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "run 'r9' has no lock" in unknown.stderr
