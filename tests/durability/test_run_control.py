"""Pause and cancel reach jobs that wait and trajectories that run."""

from __future__ import annotations

import json
import os
import time

import pytest
from records import make_job
from worker_process import wait_until
from zygote import start_forked

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Runs

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
ROWS = 3000
"""More than a producer enqueues while it is being killed."""


def slow_job(instance, *, seconds, turns, **limits):
    agent = {"kind": "slow", "params": {"seconds": seconds, "turns": turns}}
    return make_job("run", instance, item=ROW, agent=agent, limits=limits)


@pytest.mark.fleet
def test_a_running_trajectory_waits_for_its_paused_run_and_the_wait_costs_no_deadline(
    factory, ledger, start_worker
):
    worker = start_worker(concurrency=1)
    # Twice as long as its turns take, and those long enough to be paused in.
    running = slow_job("a", seconds=1.0, turns=6, agent_timeout_s=12, total_timeout_s=14)
    waiting = slow_job("b", seconds=0, turns=1)
    enqueue([running, waiting], ledger=ledger)
    factory.wait_running(1)
    Runs(ledger).pause("run")
    wait_until("the worker knows", lambda: "run run is paused" in worker.log())
    paused = time.monotonic()
    time.sleep(15)  # longer than the lease and either limit of the trajectory
    status = ledger.run_status("run")
    assert (status.running, status.finished) == (1, 0), "it did not wait"
    Runs(ledger).resume("run")
    waited_s = time.monotonic() - paused
    records = {record.instance_id: record for record in factory.wait_done()}
    assert [(r.status, r.epoch, r.attempt) for r in records.values()] == [("completed", 1, 1)] * 2
    assert records["a"].stop_reason == "no_tool_call"
    assert records["a"].stage_seconds["agent"] > waited_s


def test_the_waiting_jobs_of_a_paused_run_are_parked_and_run_after_resume(
    factory, ledger, start_worker
):
    enqueue([slow_job(f"i{n}", seconds=0, turns=1) for n in range(5)], ledger=ledger)
    Runs(ledger).pause("run")
    start_worker(concurrency=2)
    wait_until("all parked", lambda: Runs(ledger).get("run").parked == 5)
    assert Runs(ledger).resume("run") == 5
    assert {(r.attempt, r.epoch) for r in factory.wait_done()} == {(1, 1)}


def test_cancel_stops_running_trajectories_and_nothing_of_them_is_published(
    factory, ledger, start_worker
):
    worker = start_worker(concurrency=2)
    factory.enqueue(4, seconds=600)
    factory.wait_running(2)
    assert Runs(ledger).cancel("run") == 4
    worker.wait_for_log("is lost: cancelled", times=2)
    fresh = factory.enqueue(1, seconds=0, run_id="other")  # the slots are free again
    records = factory.wait_done("other")
    assert [r.trajectory_id for r in records] == [job.trajectory_id for job in fresh]
    status = ledger.run_status("run")
    assert (status.cancelled, status.running, status.queued, status.total) == (4, 0, 0, 4)


@pytest.fixture
def producer(redis_server, tmp_path):
    """Begins a real producer process on `ROWS` rows, in batches of 50."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({**ROW, "instance_id": f"r{n}"}) + "\n" for n in range(ROWS))
    )
    settings = {
        "HERMES_QUEUE_REDIS_URL": redis_server.url,
        "HERMES_QUEUE_PRODUCER_BATCH": "50",
    }

    def begin(*flags, items=ROWS):
        flags += ("--dataset", rows, "--items", items, "--run-id", "run", "--json", "--quiet")
        return start_forked("producers.gsm8k", *flags, environment={**os.environ, **settings})

    return begin


def test_a_producer_killed_while_enqueueing_is_repeated_and_every_job_is_there_once(
    ledger, producer
):
    first = producer()
    wait_until("some are claimed", lambda: ledger.run_status("run").total >= 200)
    first.kill()
    first.communicate()
    before = ledger.run_status("run").total
    assert 200 <= before < ROWS
    summary = json.loads(producer().communicate()[0])
    assert (summary["already"], summary["enqueued"]) == (before, ROWS - before)
    assert ledger.run_status("run").total == ROWS
    # Each is in exactly one place: in the broker, or claimed and due to the mover.
    waiting = set(ledger.client.zrange("hq:waiting", 0, -1))
    claimed = set(ledger.client.zrange("hq:delayed", 0, -1))
    assert not waiting & claimed
    assert len(waiting | claimed) == ROWS
    assert len(claimed) <= 50


def test_two_producers_of_one_run_at_once_share_its_jobs(ledger, producer):
    both = producer(items=500), producer(items=500)
    summaries = [json.loads(each.communicate()[0]) for each in both]
    assert sum(summary["enqueued"] for summary in summaries) == 500
    assert sum(summary["already"] for summary in summaries) == 500
    assert ledger.client.zcard("hq:waiting") == 500


def test_of_two_producers_at_once_that_differ_one_is_refused(ledger, producer):
    both = [producer("--agent", agent, items=500) for agent in ("nop", "oracle")]
    errors = [each.communicate()[1] for each in both]
    assert sorted(each.returncode for each in both) == [0, 2]
    assert "was begun with agent" in "".join(errors)
    assert ledger.run_status("run").total == 500
