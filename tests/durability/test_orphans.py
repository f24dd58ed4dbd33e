"""What is left when everything is killed: nothing, once a worker is back."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from worker_process import wait_until
from zygote import run_forked

from hermes_queue.ledger.fleet.sandboxes import Sandboxes

QUICK = {
    "HERMES_QUEUE_LOCAL_REAP_S": "0.5",
    "HERMES_QUEUE_SANDBOX_REAP_S": "1",
    "HERMES_QUEUE_SANDBOX_REAP_GRACE_S": "1",
}


@pytest.fixture
def own_cache():
    directory = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def boxes(cache):
    return {path.name for path in (cache / "slots").glob("*/")}


def processes_of(cache):
    """Processes that have a slot of this cache on their command line, such as its bwrap."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(cache / "slots") in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


def groups_of(cache):
    """Control groups of all slots; none where they are not to be had."""
    records = [path for path in (cache / "slots").glob("*/*.json") if path.name != "sandbox.json"]
    return [group for path in records for group in json.loads(path.read_text())["groups"]]


def recorded(ledger):
    return {record.sandbox_id for record in Sandboxes(ledger).all()}


def command(ledger, cache, *words):
    settings = {"HERMES_QUEUE_REDIS_URL": ledger.url, "HERMES_QUEUE_PATHS_CACHE": str(cache)}
    return run_forked("hermes_queue.cli", *words, environment={**os.environ, **settings})


def listed(ledger, cache):
    done = command(ledger, cache, "sandboxes", "list", "--json")
    assert done.returncode == 0, done.stderr
    return {row["id"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.fleet
def test_nothing_is_left_of_workers_killed_with_their_redis(
    factory, ledger, redis_server, start_worker, own_cache
):
    settings = {**QUICK, "HERMES_QUEUE_PATHS_CACHE": str(own_cache)}
    doomed = [start_worker(concurrency=2, **settings) for _ in range(2)]
    factory.enqueue(4, seconds=60)
    factory.wait_running(4)
    rows = listed(ledger, own_cache)
    assert set(rows) == boxes(own_cache)
    wait_until("slots", lambda: sum(len(r.slots) for r in Sandboxes(ledger).all()) == 4)
    old, old_processes = boxes(own_cache), processes_of(own_cache)
    assert len(old_processes) >= 4, "a slot has a process that names it"
    old_groups = groups_of(own_cache)
    for worker in doomed:
        worker.kill9()
    redis_server.kill9()
    redis_server.start()
    heir = start_worker(concurrency=1, HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="0.5", **settings)
    wait_until("directories gone", lambda: not old & boxes(own_cache))
    wait_until("processes gone", lambda: not any(p.is_running() for p in old_processes))
    assert not [group for group in old_groups if Path(group).exists()]
    wait_until("records gone", lambda: not old & recorded(ledger))
    assert heir.terminate() == 0, heir.log()
    wait_until("its processes gone", lambda: not processes_of(own_cache))
    assert boxes(own_cache) == set()
    assert recorded(ledger) == set()


@pytest.mark.fleet
def test_a_live_workers_sandbox_outlives_an_absence_of_redis(
    factory, ledger, redis_server, start_worker, own_cache
):
    # Whoever comes back last to Redis has twice the time of a renewal for it.
    lease = {"HERMES_QUEUE_LEASE_DURATION_S": "6", "HERMES_QUEUE_LEASE_RENEW_S": "2.5"}
    settings = {**QUICK, **lease, "HERMES_QUEUE_PATHS_CACHE": str(own_cache)}
    workers = [start_worker(concurrency=1, **settings) for _ in range(2)]
    factory.enqueue(2, seconds=13)
    factory.wait_running(2)
    before = boxes(own_cache)
    redis_server.kill9()
    time.sleep(8)
    redis_server.start()
    records = factory.wait_done()
    assert [r.epoch for r in records] == [1, 1], "a job was started twice"
    assert boxes(own_cache) == before
    wait_until("renewed", lambda: recorded(ledger) == before)
    assert all(worker.alive for worker in workers)


def test_a_sandbox_is_ended_by_hand_but_not_under_a_live_worker(ledger, start_worker, own_cache):
    start_worker(concurrency=1, **QUICK, HERMES_QUEUE_PATHS_CACHE=str(own_cache))
    [box] = boxes(own_cache)
    unknown = command(ledger, own_cache, "sandboxes", "terminate", "nothing")
    assert (unknown.returncode != 0, "unknown" in unknown.stderr) == (True, True)
    refused = command(ledger, own_cache, "sandboxes", "terminate", box)
    assert (refused.returncode != 0, "--force" in refused.stderr) == (True, True)
    assert boxes(own_cache) == {box}
    forced = command(ledger, own_cache, "sandboxes", "terminate", box, "--force")
    assert forced.returncode == 0, forced.stderr
    assert boxes(own_cache) == set()
