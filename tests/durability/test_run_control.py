"""Pause and cancel reach jobs that wait and trajectories that run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from records import make_job
from worker_process import wait_until

from hermes_queue.ledger import Runs
from hermes_queue.queues import enqueue

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


def slow_job(instance, *, seconds, turns, **limits):
    agent = {"kind": "slow", "params": {"seconds": seconds, "turns": turns}}
    return make_job("run", instance, item=ROW, agent=agent, limits=limits)


def test_a_running_trajectory_waits_for_its_paused_run_and_the_wait_costs_no_deadline(
    factory, ledger, start_worker
):
    worker = start_worker(concurrency=1)
    running = slow_job("a", seconds=1.5, turns=2, agent_timeout_s=6, total_timeout_s=8)
    waiting = slow_job("b", seconds=0, turns=1)
    enqueue([running, waiting], ledger=ledger)
    factory.wait_running(1)
    Runs(ledger).pause("run")
    wait_until("the worker knows", lambda: "run run is paused" in worker.log())
    paused = time.monotonic()
    time.sleep(9)  # longer than the lease and either limit of the trajectory
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
    worker = start_worker(concurrency=2)
    wait_until("all parked", lambda: Runs(ledger).get("run").parked == 5)
    assert worker.log().count("dropped: paused") == 5
    assert Runs(ledger).resume("run") == 5
    assert {(r.attempt, r.epoch) for r in factory.wait_done()} == {(1, 1)}


def test_cancel_stops_running_trajectories_and_nothing_of_them_is_published(
    factory, ledger, start_worker
):
    worker = start_worker(concurrency=2)
    factory.enqueue(4, seconds=600)
    factory.wait_running(2)
    assert Runs(ledger).cancel("run") == 4
    wait_until("stopped", lambda: worker.log().count("is gone: cancelled") == 2)
    fresh = factory.enqueue(1, seconds=0, run_id="other")  # the slots are free again
    records = factory.wait_done("other")
    assert [r.trajectory_id for r in records] == [job.trajectory_id for job in fresh]
    status = ledger.run_status("run")
    assert (status.cancelled, status.running, status.queued, status.total) == (4, 0, 0, 4)


def test_a_producer_killed_while_enqueueing_is_repeated_and_every_job_is_there_once(
    ledger, redis_server, tmp_path
):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({**ROW, "instance_id": f"r{n}"}) + "\n" for n in range(3000)))
    command = [sys.executable, "-m", "producers.gsm8k", "--dataset", str(rows), "--items", "all"]
    command += ["--run-id", "run", "--json", "--quiet"]
    environment = {
        **os.environ,
        "HERMES_QUEUE_REDIS_URL": redis_server.url,
        "HERMES_QUEUE_PRODUCER_BATCH": "50",
    }
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    wait_until("some are claimed", lambda: ledger.run_status("run").total >= 200)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = ledger.run_status("run").total
    assert 200 <= before < 3000
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    summary = json.loads(again.stdout)
    assert (summary["already"], summary["enqueued"]) == (before, 3000 - before)
    assert ledger.run_status("run").total == 3000
    # Each is in exactly one place: in the broker, or claimed and due to the mover.
    client = ledger.client
    waiting = set(client.zrange("hq:waiting", 0, -1))
    claimed = set(client.zrange("hq:delayed", 0, -1))
    assert not waiting & claimed
    assert len(waiting | claimed) == 3000
    assert len(claimed) <= 50
