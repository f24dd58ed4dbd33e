"""Secrets that agents, endpoints and errors say occur in nothing that a worker writes down."""

from __future__ import annotations

import json

import pytest
from leaky_agent import KEY
from records import make_job
from worker_process import wait_until

from hermes_queue.bodies import codec
from hermes_queue.broker.enqueue import enqueue

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
SEEDED = "n0t-a-Known-form/but+named"
SECRETS = (SEEDED, KEY, "pa55-of-a-url")


def everything_in(client) -> dict[str, str]:
    """All of Redis as text, bodies decoded."""
    found = {}
    for key in client.keys("*"):
        kind = client.type(key)
        if kind == b"stream":
            value = client.xrange(key)
        elif kind == b"hash":
            value = client.hgetall(key)
        elif kind == b"list":
            value = client.lrange(key, 0, -1)
        elif kind in (b"zset", b"set"):
            value = client.zrange(key, 0, -1) if kind == b"zset" else client.smembers(key)
        else:
            value = client.get(key)
            if b"body:" in key:
                value = codec.decode_record(value).model_dump_json()
        found[key.decode()] = str(value)
    return found


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_secret_is_in_logs_records_dead_letters_or_anything_in_redis(
    ledger, start_worker, tmp_path, log_format
):
    worker = start_worker(
        SEEDED_TOKEN=SEEDED,
        HERMES_QUEUE_LOG_FORMAT=log_format,
        HERMES_QUEUE_RETRY_BACKOFF_S="0.1",
    )
    jobs = [
        make_job("run", how, item=ROW, agent={"kind": "leaky_agent:leaky", "params": {"how": how}})
        for how in ("talk", "retry", "bug")
    ]
    enqueue(jobs, ledger=ledger)
    wait_until("run done", lambda: ledger.run_status("run").done)
    assert ledger.run_status("run").finished == 2
    held = everything_in(ledger.client)
    bodies = {job.instance_id: held[f"hq:body:{job.trajectory_id}"] for job in jobs}
    assert all("***" in body for body in bodies.values())
    assert "***" in held["hq:dead"]
    assert '"secrets_scrubbed"' in bodies["talk"]
    worker.terminate()
    log = worker.log()
    assert "***" in log
    places = {**held, "log": log}
    for path in (tmp_path / "workers").rglob("*"):
        if path.is_file():
            places[str(path)] = path.read_bytes().decode(errors="replace")
    assert [
        (place, secret) for place, text in places.items() for secret in SECRETS if secret in text
    ] == []


def test_json_logs_are_one_object_per_line_and_name_what_they_are_about(
    ledger, start_worker, tmp_path
):
    worker = start_worker(SEEDED_TOKEN=SEEDED, HERMES_QUEUE_LOG_FORMAT="json")
    agent = {"kind": "leaky_agent:leaky", "params": {"how": "bug"}}
    job = make_job("run", "i", item=ROW, agent=agent)
    enqueue([job], ledger=ledger)
    wait_until("run done", lambda: ledger.run_status("run").done)
    worker.terminate()
    lines = [line for line in worker.log().splitlines() if line]
    begin = next(n for n, line in enumerate(lines) if line.startswith("{"))  # after the banner
    logged = [line for line in lines[begin:] if not line.startswith("worker: ")]  # by Celery itself
    events = [json.loads(line) for line in logged]
    about = [event for event in events if event.get("trajectory_id") == job.trajectory_id]
    assert {event["run_id"] for event in about} == {"run"}
    # A worker drops a message that comes a second time, as the scheduler's tick may send one.
    actions = [event["action"] for event in about if "action" in event]
    assert [action for action in actions if action != "dropped"] == ["bug", "published"]
    [agent] = [event for event in about if event["logger"] == "leaky_agent"]
    assert (agent["level"], agent["message"].count("***")) == ("error", 3)
    assert agent["exception"].startswith("Traceback")
    assert agent["exception"].count("***") == 3
    celery = [event["message"] for event in about if event["logger"].startswith("celery")]
    assert any("received" in message for message in celery)
    assert any("succeeded" in message for message in celery)
