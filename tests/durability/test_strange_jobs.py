"""A job that goes wrong in an unforeseen way is published with its real cause, once."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from records import make_job
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue

SUPPORT = str(Path(__file__).parents[1] / "support")
ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


CAUSES = {
    "env": ({"env": "nowhere:ENV"}, "nowhere"),
    "tool": ({"env": "strange_env:UNKNOWN_TOOL"}, "teleport"),
    "agent": ({"agent": {"kind": "nobody"}}, "nobody"),
    "unencodable": ({"env": "strange_env:UNENCODABLE"}, "is a set"),
    "nan": ({"env": "strange_env:NOT_A_NUMBER"}, "score"),
    "too-large": ({"env": "strange_env:HUGE"}, "HERMES_QUEUE_RESULTS_INLINE_MAX_BYTES"),
    "item": ({"item": {"nonsense": 1}}, "question"),
    "exit": ({"env": "strange_env:EXITS"}, "SystemExit: 7"),
    "exit-in-a-task": ({"env": "strange_env:EXITS_IN_A_TASK"}, "SystemExit: 7"),
    "interrupt": ({"env": "strange_env:INTERRUPTS"}, "KeyboardInterrupt"),
    "cancel": ({"env": "strange_env:CANCELS_ITSELF"}, "CancelledError"),
    "close": ({"env": "strange_env:CLOSES"}, "GeneratorExit"),
    "exit-at-import": ({"env": "exits_when_imported:ENV"}, "SystemExit: not here"),
    "pythons-own": ({"env": "unittest.__main__:x"}, "HERMES_QUEUE_WORKER_IMPORTS"),
    "pythons-own-agent": ({"agent": {"kind": "antigravity:x"}}, "HERMES_QUEUE_WORKER_IMPORTS"),
}


def test_the_record_names_the_cause_and_the_worker_goes_on(factory, ledger, start_worker):
    path = os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")]))
    worker = start_worker(
        concurrency=2, PYTHONPATH=path, HERMES_QUEUE_RESULTS_INLINE_MAX_BYTES="200000"
    )
    jobs = [
        make_job(instance=name, **{"item": ROW, **fields}) for name, (fields, _) in CAUSES.items()
    ]
    enqueue(jobs, ledger=ledger)
    failures = {
        record.instance_id: (record.score, record.attempt, record.epoch, record.failure)
        for record in factory.wait_done()
    }
    for name, (_, expected) in CAUSES.items():
        *counted, failure = failures[name]
        assert (name, counted, failure.cause) == (name, [None, 1, 1], "env_bug")
        assert expected in failure.message, name
    assert worker.alive
    assert ledger.client.hget("hq:totals", "lease_expiries") is None


@pytest.mark.fleet
def test_a_spool_that_cannot_be_written_does_not_cost_the_score(factory, start_worker, tmp_path):
    worker = start_worker(concurrency=1)
    factory.enqueue(1, seconds=4)
    factory.wait_running(1)
    shutil.rmtree(tmp_path / "workers" / "spool")
    [record] = factory.wait_done()
    assert (record.status, record.epoch) == ("completed", 1)
    worker.wait_for_log("published from memory")


def test_a_job_whose_message_is_lost_runs_all_the_same(factory, ledger, start_worker):
    [job] = factory.enqueue(1, seconds=0)
    for key in ledger.client.scan_iter("hq:v1.*"):
        ledger.client.delete(key)
    start_worker(concurrency=1)
    [record] = factory.wait_done()
    assert record.trajectory_id == job.trajectory_id


@pytest.mark.fleet
def test_a_worker_comes_back_from_junk_in_the_keys_of_all(factory, ledger, start_worker):
    """A neighbour with a producer's key writes them while jobs run, wait and come back."""
    worker = start_worker(concurrency=2)
    factory.enqueue(2, seconds=3)
    factory.wait_running(2)
    factory.enqueue(3, run_id="later", seconds=0)
    for name in ("delayed", "waiting", "v1.train", "v1.train.retry", "lanes", "sched:open:train"):
        ledger.client.set(f"hq:{name}", "x")
    factory.enqueue(2, run_id="last", seconds=0)
    for run_id in ("run", "later", "last"):
        factory.wait_done(run_id)
    assert worker.alive
    wait_until("it is counted", lambda: ledger.client.hexists("hq:totals", "junk_keys"))


def test_a_worker_survives_a_redis_that_is_full_and_goes_on_after(factory, ledger, start_worker):
    worker = start_worker(concurrency=1)
    ledger.client.config_set("maxmemory", 1)
    time.sleep(3)
    assert worker.alive, worker.log()
    ledger.client.config_set("maxmemory", 0)
    factory.enqueue(1, seconds=0)
    assert len(factory.wait_done()) == 1


@pytest.mark.fleet
def test_a_result_waits_while_redis_refuses_writes(factory, ledger, start_worker):
    worker = start_worker(concurrency=1)
    factory.enqueue(1, seconds=5)
    factory.wait_running(1)
    ledger.client.config_set("min-replicas-to-write", 1)  # NOREPLICAS on every write
    wait_until("the worker waits", lambda: "refuses writes for now" in worker.log())
    ledger.client.config_set("min-replicas-to-write", 0)
    [record] = factory.wait_done()
    assert record.epoch == 1
    assert worker.alive


def swallowing(start_worker, **job):
    """A worker that gives up soon, and a job that swallows cancellations while it is graded."""
    path = os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")]))
    worker = start_worker(
        concurrency=2,
        PYTHONPATH=path,
        HERMES_QUEUE_WORKER_STUCK_S="0.5",
        HERMES_QUEUE_RETRY_ATTEMPTS_DEADLINE="1",
    )
    return worker, make_job(item=ROW, limits={"verify_timeout_s": 0.2}, **job)


def test_code_that_swallows_its_deadline_ends_without_a_score(factory, ledger, start_worker):
    _, job = swallowing(start_worker, env="strange_env:SWALLOWS_ONE")
    enqueue([job], ledger=ledger)
    [record] = factory.wait_done()
    assert (record.score, record.failure.cause) == (None, "deadline")
    assert record.failure.message == "verify went on after its deadline"


@pytest.mark.fleet
def test_a_job_that_nothing_ends_loses_its_lease_and_its_place(factory, ledger, start_worker):
    worker, job = swallowing(start_worker, env="strange_env:SWALLOWS_ALL")
    enqueue([job], ledger=ledger)
    wait_until("its lease expires", lambda: ledger.client.hget("hq:totals", "lease_expiries"))
    assert ledger.client.hget(f"hq:traj:{job.trajectory_id}", "state") != b"final"
    assert worker.alive
