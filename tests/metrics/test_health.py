"""Probes tell a worker that is stuck from one that waits, and a scaler what each lane wants."""

from __future__ import annotations

import json
import os
import socket
import urllib.error

import pytest
from records import make_job
from scrape import fetch, worker_endpoint
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


def slow_jobs(count, seconds):
    agent = {"kind": "slow", "params": {"seconds": seconds, "turns": 1}}
    return [make_job("run", f"i{n}", item=ROW, agent=agent) for n in range(count)]


def probe(ledger, worker):
    """Asks a worker for its health; returns the status and what it says."""
    base = worker_endpoint(ledger, worker.process.pid).removesuffix("/metrics")

    def ask(what):
        try:
            return 200, fetch(f"{base}/health/{what}")
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    return ask


def test_a_worker_that_waits_is_alive_and_ready(ledger, start_worker):
    ask = probe(ledger, start_worker())
    status, said = ask("live")
    assert status == 200
    assert json.loads(said)["running"] == 0
    wait_until("it is ready", lambda: ask("ready")[0] == 200)


def test_one_that_waits_for_redis_is_alive_and_not_ready(ledger, start_worker, redis_server):
    ask = probe(ledger, start_worker(HERMES_QUEUE_LEASE_DURATION_S="4"))
    redis_server.stop()
    wait_until("it is not ready", lambda: ask("ready")[0] == 503)
    assert ask("live")[0] == 200
    assert "takes no jobs" in ask("ready")[1]
    redis_server.start()
    wait_until("it is ready again", lambda: ask("ready")[0] == 200)


@pytest.mark.fleet
def test_one_whose_event_loop_stands_still_is_not_alive(ledger, start_worker, tmp_path):
    worker = start_worker(
        HERMES_QUEUE_WORKER_BLOCKED_EXIT_S="12", STRANGE_BLOCKED=str(tmp_path / "blocked")
    )
    ask = probe(ledger, worker)
    enqueue([make_job(item=ROW, env="strange_env:BLOCKS_ONCE")], ledger=ledger)
    wait_until("its loop is blocked", (tmp_path / "blocked").exists)
    wait_until("it is not alive", lambda: ask("live")[0] == 503, timeout_s=11)
    assert "stuck" in ask("live")[1]
    worker.kill9()


@pytest.mark.fleet
def test_one_that_drains_is_alive_and_not_ready(ledger, start_worker):
    worker = start_worker()
    ask = probe(ledger, worker)
    enqueue(slow_jobs(1, 4.0), ledger=ledger)
    wait_until("it runs", lambda: ledger.run_status("run").running == 1)
    os.kill(worker.process.pid, 15)
    wait_until("it is not ready", lambda: ask("ready")[0] == 503)
    assert json.loads(ask("live")[1])["intake"] == "ending"
    assert worker.terminate() == 0
    assert ledger.run_status("run").done


@pytest.mark.fleet
def test_idle_connections_keep_no_probe_out(ledger, start_worker):
    worker = start_worker()
    ask = probe(ledger, worker)
    host, _, port = worker_endpoint(ledger, worker.process.pid)[7:].partition("/")[0].partition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(60)]
    try:
        assert ask("live")[0] == 200
    finally:
        for each in idle:
            each.close()


@pytest.mark.fleet
def test_a_scaler_learns_what_each_lane_wants(ledger, start_worker, exporter, redis_server):
    start_worker(concurrency=2)
    enqueue(slow_jobs(5, 60.0), ledger=ledger)

    def wants():
        return json.loads(fetch(f"{exporter}/scaling"))["lanes"]["train"]

    wait_until("two run", lambda: wants()["running"] == 2)
    found = wants()
    assert (found["wanted_slots"], found["workers"], found["paused"]) == (5, 1, False)
    redis_server.stop()
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        fetch(f"{exporter}/scaling")
    refused.value.close()
    redis_server.start()
