"""Nothing is lost and nothing counts twice when things are killed under running jobs."""

from __future__ import annotations

import json
import os
import time

import pytest
import redis
from records import published_records
from spool_files import spooled
from worker_process import wait_until
from zygote import run_forked

from hermes_queue.broker.enqueue import publish_messages
from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import DueJob


def assert_each_once(records, jobs):
    assert sorted(r.trajectory_id for r in records) == sorted(j.trajectory_id for j in jobs)


def drained(ledger):
    """What a finished run leaves waiting anywhere: nothing.

    Except for a message whose acknowledgement was lost with a connection or a worker: it
    comes back after the visibility timeout, to be dropped then.
    """
    client = ledger.client
    queues = [key for key in client.scan_iter("hq:v1.*") if client.type(key) == b"list"]
    return not queues and not client.exists("hq:unacked", "hq:leases", "hq:delayed")


def assert_drains(ledger):
    wait_until("nothing waits anywhere", lambda: drained(ledger), timeout_s=90.0)


@pytest.mark.fleet
def test_redis_killed_under_running_jobs_for_longer_than_a_lease(
    factory, ledger, redis_server, start_worker
):
    worker = start_worker(concurrency=3)
    jobs = factory.enqueue(4, seconds=8)
    factory.wait_running(3)
    redis_server.kill9()
    time.sleep(4)
    redis_server.start()
    records = factory.wait_done()
    assert_each_once(records, jobs)
    assert [r.epoch for r in records] == [1, 1, 1, 1], "a job was started twice"
    assert worker.alive, worker.log()
    assert "CRITICAL" not in worker.log()
    assert_drains(ledger)


@pytest.mark.fleet
def test_every_connection_reset_under_running_jobs(factory, ledger, start_worker):
    worker = start_worker(concurrency=3)
    jobs = factory.enqueue(4, seconds=5)
    factory.wait_running(3)
    me = ledger.client.client_id()
    for other in ledger.client.client_list():
        if int(other["id"]) != me:
            try:
                ledger.client.client_kill_filter(_id=other["id"])
            except redis.ResponseError:
                pass  # gone by itself
    records = factory.wait_done()
    assert_each_once(records, jobs)
    assert [r.epoch for r in records] == [1, 1, 1, 1], "a job was started twice"
    assert worker.alive, worker.log()
    assert_drains(ledger)


def test_the_jobs_of_a_killed_worker_run_on_another_one(factory, ledger, start_worker):
    doomed = start_worker(concurrency=3, forked=False)  # the command that people type
    jobs = factory.enqueue(3, seconds=6)
    factory.wait_running(3)
    # An unacknowledged message would come back only after the visibility timeout.
    wait_until("messages acknowledged", lambda: not ledger.client.exists("hq:unacked"))
    doomed.kill9()
    heir = start_worker(concurrency=3, forked=False)
    records = factory.wait_done()
    assert_each_once(records, jobs)
    assert {(r.attempt, r.epoch) for r in records} == {(1, 2)}
    assert {r.provenance.worker for r in records} == {w["owner"] for w in ledger.workers()}
    assert heir.alive
    assert_drains(ledger)


def test_sigterm_hands_running_jobs_back_to_another_worker(factory, ledger, start_worker):
    leaving = start_worker(concurrency=3, HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="0.5")
    jobs = factory.enqueue(3, seconds=8)
    factory.wait_running(3)
    assert leaving.terminate() == 0, leaving.log()
    start_worker(concurrency=3)
    records = factory.wait_done()
    assert_each_once(records, jobs)
    assert {(r.attempt, r.epoch) for r in records} == {(1, 2)}
    deaths = [ledger.client.hget(f"hq:traj:{j.trajectory_id}", "deaths") for j in jobs]
    assert deaths == [None, None, None]
    assert_drains(ledger)


@pytest.mark.fleet
def test_sigterm_lets_jobs_that_are_nearly_done_finish(factory, start_worker):
    worker = start_worker(concurrency=2, HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="30")
    jobs = factory.enqueue(2, seconds=5)
    factory.wait_running(2)
    assert worker.terminate() == 0, worker.log()
    records = published_records(factory.ledger)
    assert_each_once(records, jobs)
    assert {r.epoch for r in records} == {1}


def test_a_record_finished_while_redis_was_away_survives_its_worker(
    factory, redis_server, start_worker, tmp_path
):
    worker = start_worker(concurrency=1)
    [job] = factory.enqueue(1, seconds=5)
    factory.wait_running(1)
    wait_until(  # only then has the worker the answer by which it runs the job
        "message acknowledged", lambda: not factory.ledger.client.exists("hq:unacked")
    )
    redis_server.kill9()
    spool = tmp_path / "workers" / "spool"
    wait_until("the record is on disk", lambda: spooled(spool))
    worker.kill9()
    redis_server.start()
    start_worker(concurrency=1)
    [record] = factory.wait_done()
    assert (record.trajectory_id, record.epoch) == (job.trajectory_id, 1)
    wait_until("the spool is empty", lambda: not spooled(spool))


@pytest.mark.fleet
def test_a_second_delivery_of_a_running_job_is_dropped(factory, ledger, start_worker):
    worker = start_worker(concurrency=2)
    [job] = factory.enqueue(1, seconds=5)
    factory.wait_running(1)
    publish_messages(ledger, [DueJob(job.trajectory_id, 1, job.lane, job.priority)])
    [record] = factory.wait_done()
    assert record.epoch == 1
    worker.wait_for_log("dropped: busy")


def test_a_revoked_job_is_published_without_a_score(factory, ledger, start_worker):
    start_worker(concurrency=1)
    [job] = factory.enqueue(1, seconds=60)
    factory.wait_running(1)
    [worker] = ledger.workers()
    done = run_forked(  # ends with the answer, which it awaits for a second otherwise
        *("celery", "-A", "hermes_queue", "control", "terminate"),
        *("-d", worker["name"], "-t", "60", "KILL", f"{job.trajectory_id}.1"),
        environment={**os.environ, "HERMES_QUEUE_REDIS_URL": ledger.url},
    )
    assert done.returncode == 0, done.stderr
    [record] = factory.wait_done()
    assert (record.score, record.stop_reason) == (None, "cancelled")
    assert record.failure.cause == "cancelled"


@pytest.mark.fleet
def test_a_job_from_a_newer_producer_waits_for_a_newer_worker(factory, ledger, start_worker):
    [job] = factory.enqueue(1, seconds=0)
    key = f"hq:traj:{job.trajectory_id}"
    ours = ledger.client.hget(key, "job")
    newer = {**json.loads(ours), "schema_version": 9, "novel": 1}
    ledger.client.hset(key, "job", json.dumps(newer))
    worker = start_worker(concurrency=1)
    wait_until("refused", lambda: "left to a newer worker" in worker.log())
    wait_until("given back", lambda: ledger.run_status("run").queued == 1)
    worker.wait_for_log("schema_version 9")
    assert ledger.client.hget(key, "attempt") == b"1"
    ledger.client.hset(key, "job", ours)
    [record] = factory.wait_done()
    assert (record.status, record.attempt) == ("completed", 1)


def test_a_job_that_nobody_can_read_is_kept_as_evidence_and_its_group_closes(
    factory, ledger, start_worker
):
    [job] = factory.enqueue(1, seconds=0)
    key = f"hq:traj:{job.trajectory_id}"
    ledger.client.hset(key, "job", json.dumps({"schema_version": 1, "novel": 1}))
    start_worker(concurrency=1)
    [record] = factory.wait_done()
    assert record.score is None
    assert "novel" in record.failure.message
    [(_, evidence)] = ledger.client.xrange("hq:dead")
    assert json.loads(evidence[b"job"])["novel"] == 1


class _CutOff(list):
    """Jobs before whose last one Redis is gone."""

    def __init__(self, jobs, server):
        super().__init__(jobs)
        self.server = server

    def __iter__(self):
        *first, last = super().__iter__()
        yield from first
        self.server.kill9()
        yield last


def test_a_redis_lost_while_messages_are_sent_is_an_outage_like_any_other(ledger, redis_server):
    jobs = [DueJob(f"run.i{n}.0", 1, "train", 5) for n in range(3)]
    with pytest.raises(RedisUnavailable, match="cannot be reached"):
        publish_messages(ledger, _CutOff(jobs, redis_server))
