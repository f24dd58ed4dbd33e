"""A real worker counts what it does, once."""

from __future__ import annotations

import platform

import pytest
from ports import free_ports
from records import make_job
from scrape import scrape, targets, total, value, worker_endpoint
from worker_process import WorkerProcess, wait_until

from hermes_queue.bodies import codec
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.results.stored import stored_group

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


def jobs(count, **more):
    return [make_job("run", f"i{n}", item=ROW, **more) for n in range(count)]


def counted(ledger, worker, count, *, scored):
    """What the worker counts of a run, once that has been published and counted."""
    wait_until("run done", lambda: ledger.run_status("run").done)
    url = worker_endpoint(ledger, worker.process.pid)

    def found():
        series = scrape(url)
        turns = value(series, "trajectory_turns_count", env="gsm8k")
        return (total(series, "trajectory_stops_total"), turns) == (count, scored) and series

    return wait_until(f"{count} counted", found)


def test_what_a_worker_and_the_exporter_count_is_what_was_published(ledger, start_worker, exporter):
    worker = start_worker()
    enqueue([*jobs(6), make_job("run", "broken", item={"question": "?"})], ledger=ledger)
    found = counted(ledger, worker, 7, scored=6)
    assert value(found, "score_count", env="gsm8k") == 6
    assert value(found, "score_sum", env="gsm8k") == 6.0
    assert value(found, "attempts_total", env="gsm8k", outcome="measured") == 6
    assert value(found, "attempts_total", env="gsm8k", outcome="env_bug") == 1
    assert value(found, "stage_seconds_count", env="gsm8k", stage="verify") == 6
    assert value(found, "trajectory_turns_count", env="gsm8k") == 6
    assert total(found, "trajectory_stops_total") == 7
    assert total(found, "worker_slots") == 4
    deployment = scrape(f"{exporter}/metrics")
    assert value(deployment, "trajectories_total", env="gsm8k", outcome="scored") == 6
    assert value(deployment, "trajectories_total", env="gsm8k", outcome="failed") == 1
    assert value(deployment, "failures_total", env="gsm8k", cause="env_bug") == 1
    assert value(deployment, "dead_letters") == 1
    assert value(deployment, "slots", state="free") == 4
    assert value(deployment, "workers") == 1
    assert value(deployment, "sandboxes", backend="local", state="running") >= 1
    assert value(deployment, "runs", state="done") == 1


def test_a_retried_trajectory_counts_each_attempt_and_one_result(ledger, start_worker, exporter):
    worker = start_worker(HERMES_QUEUE_RETRY_BACKOFF_S="0.1")
    agent = {"kind": "flaky_agent:flaky", "params": {"failures": 2}}
    enqueue(jobs(1, agent=agent), ledger=ledger)
    found = counted(ledger, worker, 1, scored=1)
    assert value(found, "attempts_total", env="gsm8k", outcome="model") == 2
    assert value(found, "stage_seconds_count", env="gsm8k", stage="queue") == 3
    assert value(found, "attempts_total", env="gsm8k", outcome="measured") == 1
    assert value(found, "stage_seconds_count", env="gsm8k", stage="agent") == 3
    assert value(found, "score_count", env="gsm8k") == 1
    deployment = scrape(f"{exporter}/metrics")
    assert value(deployment, "retries_total", cause="model") == 2
    assert value(deployment, "failures_total", env="gsm8k", cause="model") == 0
    assert value(deployment, "trajectories_total", env="gsm8k", outcome="scored") == 1


def test_a_record_says_with_what_and_when_it_was_made_and_what_failed_before(ledger, start_worker):
    start_worker(HERMES_QUEUE_RETRY_BACKOFF_S="0.1")
    agent = {"kind": "flaky_agent:flaky", "params": {"failures": 1}}
    enqueue(jobs(1, agent=agent), ledger=ledger)
    wait_until("run done", lambda: ledger.run_status("run").done)
    [(_, fields)] = ledger.client.xrange("hq:results")
    group = stored_group(ledger.client, ledger.prefix, fields).group()
    [record], [published] = group.members, group.published
    made = record.provenance
    assert made.item_sha256 == codec.item_sha256(ROW)
    assert made.image is not None
    assert f"Python {platform.python_version()}" in made.image
    assert {"hermes-queue", "python", "celery", "redis"} <= set(made.packages)
    assert made.queued_at <= made.begun_at <= published
    assert record.stage_seconds["queue"] == pytest.approx(made.begun_at - made.queued_at, abs=1e-3)
    [failed] = record.attempts
    assert [message.role for message in failed.messages] == ["system", "user"]
    assert (failed.host, failed.worker) == (made.host, made.worker)
    assert group.created <= failed.begun_at <= made.queued_at


def test_workers_of_one_host_share_a_range_of_ports_and_the_exporter_knows_them(
    ledger, start_worker, exporter
):
    port = free_ports(2)
    settings = {
        "HERMES_QUEUE_METRICS_WORKER_PORT": str(port),
        "HERMES_QUEUE_METRICS_WORKER_PORTS": "2",
    }
    for _ in range(2):
        start_worker(**settings)
    expected = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    found = wait_until("targets", lambda: len(t := targets(f"{exporter}/targets")) == 2 and t)
    assert sorted(found) == expected
    assert all(total(scrape(f"http://{target}/metrics"), "worker_slots") == 4 for target in found)


def test_a_worker_whose_port_is_taken_says_so_and_ends(redis_server, tmp_path, taken_port):
    worker = WorkerProcess(
        redis_server.url,
        tmp_path / "workers",
        HERMES_QUEUE_METRICS_WORKER_PORT=str(taken_port),
    )
    with pytest.raises(AssertionError):
        worker.start()
    assert worker.process.wait(60) == 2
    assert f"HERMES_QUEUE_METRICS_WORKER_PORT: port {taken_port} of 127.0.0.1" in worker.log()
    assert "HERMES_QUEUE_METRICS_WORKER_PORTS" in worker.log()


def test_a_worker_without_a_port_listens_nowhere(ledger, start_worker):
    worker = start_worker(HERMES_QUEUE_METRICS_WORKER_PORT="")
    [facts] = [w for w in ledger.workers() if w["pid"] == worker.process.pid]
    assert facts["metrics"] == ""
