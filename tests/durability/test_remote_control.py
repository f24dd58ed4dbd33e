"""`celery inspect` and `celery control` reach a real worker, and so do our own commands."""

from __future__ import annotations

import json
import os

import kombu.pools
import pytest
from celery import Celery
from records import make_job, published_records
from worker_process import wait_until
from zygote import run_forked

from hermes_queue.broker.enqueue import enqueue, publish_messages
from hermes_queue.cli.overview import overview
from hermes_queue.ledger import Breakers, DueJob, Ledger, Runs
from hermes_queue.queues import queue_keys

pytestmark = pytest.mark.timeout(400)

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
AT_ONCE = {"HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "0"}

LISTS = [f"hq:{name}" for name in queue_keys("train").all]


@pytest.fixture
def command(redis_server):
    """Run a command line against the test's Redis; what it printed."""

    def run(module, *words, code=0):
        environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": redis_server.url}
        done = run_forked(module, *words, environment=environment)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def celery(command, worker_facts):
    """Celery's own command line."""

    def run(kind, *words):
        to = ("-d", worker_facts()["name"], "-t", "60", "--json")  # ends with the answer
        output = command("celery", "-A", "hermes_queue", kind, *words, *to)
        [answer] = json.loads(output) if kind == "control" else [json.loads(output)]
        [value] = answer.values()
        return value

    return run


@pytest.fixture
def broadcast(redis_server, worker_facts):
    """What Celery's command line sends, without starting it."""

    def run(command, wait_s=60, **arguments):
        name = worker_facts()["name"]
        with Celery(broker=redis_server.broker_url, set_as_current=False) as app:
            app.conf.broker_transport_options = {"global_keyprefix": "hq:"}
            answers = app.control.broadcast(
                command, arguments, destination=[name], reply=True, timeout=wait_s
            )
        return answers[0][name] if answers else {}

    return run


@pytest.fixture
def worker_facts(ledger):
    def facts() -> dict:
        # Right after an outage its beat may have run out, and the next one not come yet.
        [found] = wait_until("a worker", ledger.workers)
        return found

    return facts


@pytest.mark.fleet
def test_a_worker_is_paused_through_an_outage_and_resumed(
    factory, start_worker, celery, broadcast, command, worker_facts, redis_server
):
    start_worker(concurrency=2, **AT_ONCE)
    [job] = factory.enqueue(1, seconds=600)
    factory.wait_running(1)
    slots = celery("inspect", "slots")
    assert (slots["concurrency"], slots["running"], slots["intake"]) == (2, 1, "open")
    [running] = slots["trajectories"]
    assert running["label"] == "gsm8k:i0#0"

    assert celery("control", "pause") == {"ok": "paused"}
    assert factory.ledger.run_status("run").running == 1, "what ran did not go on"
    broadcast("terminate", signal="SIGTERM", task_id=f"{job.trajectory_id}.1")
    factory.wait_done()
    factory.enqueue(4, seconds=600, run_id="later")
    redis_server.restart()
    kombu.pools.reset()  # this process's own connections are gone too
    wait_until("the worker is back", lambda: broadcast("slots", wait_s=3).get("intake") == "paused")
    wait_until("nothing runs", lambda: broadcast("slots")["running"] == 0)
    assert factory.ledger.run_status("later").queued == 4

    name = worker_facts()["name"]
    assert "takes jobs again" in command("hermes_queue.cli", "workers", "resume", name)
    factory.wait_running(2, "later")


def test_a_worker_is_resized_while_it_runs_and_its_slots_follow(
    factory, start_worker, celery, broadcast
):
    start_worker(concurrency=4, HERMES_QUEUE_LOCAL_SLOTS="1", **AT_ONCE)
    factory.enqueue(5, seconds=600)
    factory.wait_running(1)
    assert factory.ledger.run_status("run").queued == 4
    assert broadcast("slots")["concurrency"] == 1
    assert celery("control", "set_limits", "2") == {"ok": "limits set"}
    factory.wait_running(2)
    assert celery("control", "pool_grow", "1") == {"ok": "pool will grow"}
    factory.wait_running(3)
    wait_until("a slot for each", lambda: broadcast("slots")["leased_slots"] == 3)
    assert broadcast("pool_shrink", n=2) == {"ok": "pool will shrink"}
    assert broadcast("slots")["concurrency"] == 1
    assert broadcast("set_limits", concurrency=5, slots=3) == {"ok": "limits set"}
    factory.wait_running(5)
    assert broadcast("slots")["leased_slots"] == 3
    assert "from 1 to" in broadcast("set_limits", concurrency=0)["error"]
    assert "a number is missing" in broadcast("set_limits")["error"]
    assert "does not serve" in broadcast("pause", lanes=["nosuchlane"])["error"]


@pytest.mark.fleet
def test_a_drained_worker_finishes_what_runs_leaves_the_rest_and_ends(
    factory, start_worker, command, celery, worker_facts, ledger, broadcast
):
    worker = start_worker(concurrency=1)
    agent = {"kind": "slow", "params": {"seconds": 0.5, "turns": 20}}
    enqueue([make_job("run", f"i{n}", item=ROW, agent=agent) for n in range(3)], ledger=ledger)
    factory.wait_running(1)
    name = worker_facts()["name"]
    [running] = broadcast("slots")["trajectories"]
    id_ = running["trajectory_id"]
    # "asked too often" has no total
    wait_until("a turn", lambda: broadcast("transcript", trajectory_id=id_).get("total", 0) > 1)
    Runs(ledger).pause("run")  # so that it runs as long as this test wants
    printed = celery("inspect", "transcript", id_, "1")
    assert printed["total"] == printed["next"] == 1 + len(printed["messages"])
    away = {"error": "it does not run here"}
    wait_until("no", lambda: broadcast("transcript", trajectory_id="run.none.0") == away)
    wait_until("a beat", lambda: worker_facts()["running"] == 1)
    assert "draining" in command("hermes_queue.cli", "workers", "drain", name)
    output = command("hermes_queue.cli", "workers", "resume", name, code=1)
    assert "ends with its last trajectory" in output
    assert (worker.alive, ledger.run_status("run").running) == (True, 1)
    Runs(ledger).resume("run")
    assert worker.process.wait(120) == 0
    status = ledger.run_status("run")
    # A message that it had in hand when the drain arrived may still run.
    assert (status.finished + status.queued, status.running) == (3, 0)
    assert status.queued >= 1
    assert ledger.workers() == []
    assert "no live worker" in command("hermes_queue.cli", "workers", "pause", name, code=1)


def test_one_lane_of_two_is_paused_on_a_worker_and_for_the_fleet(
    factory, start_worker, celery, broadcast, command, ledger
):
    start_worker(concurrency=2, HERMES_QUEUE_WORKER_LANES="train,eval")
    assert celery("control", "pause", "eval") == {"ok": "paused"}
    queues = {each["name"] for each in broadcast("active_queues")}
    assert queues == {"v1.train", "v1.train.retry"}
    broadcast("resume", lanes=["eval"])
    order = [each["name"] for each in broadcast("active_queues")]
    assert order == ["v1.train.retry", "v1.train", "v1.eval.retry", "v1.eval"]
    command("hermes_queue.cli", "lanes", "pause", "train", "--reason", "new image")
    factory.enqueue(1, seconds=0)
    wait_until("its message is used up", lambda: not ledger.client.exists(*LISTS, "hq:unacked"))
    assert ledger.run_status("run").queued == 1
    assert Breakers(ledger).state("train").message == "new image"
    command("hermes_queue.cli", "lanes", "resume", "train")
    assert len(factory.wait_done()) == 1


def test_what_the_command_line_names_is_served_in_the_order_that_is_documented(
    factory, start_worker, broadcast, ledger, worker_facts
):
    """Lanes as they are named, then by priority, then in the order in which jobs came."""
    wanted = [
        *(("next", 0), ("next", 3), ("next", 9)),
        *(("train", 2), ("train", 4), ("train", 5), ("train", 5)),
    ]
    jobs = [
        make_job("run", f"{place}", item=ROW, lane=lane, priority=priority)
        for place, (lane, priority) in enumerate(wanted)
    ]
    sent = [jobs[number] for number in (5, 2, 6, 4, 1, 3, 0)]
    ledger.enqueue("run", sent, config={})
    publish_messages(ledger, [DueJob(j.trajectory_id, 1, j.lane, j.priority) for j in sent])
    ledger.published(job.trajectory_id for job in jobs)
    start_worker(concurrency=1, arguments=("-Q", "next,v1.train"), HERMES_QUEUE_WORKER_LANES="gone")
    records = sorted(factory.wait_done(), key=lambda record: record.provenance.begun_at)
    assert [int(record.instance_id) for record in records] == list(range(7))
    assert worker_facts()["lanes"] == ["next", "train"]
    order = [each["name"] for each in broadcast("active_queues")]
    assert order == ["v1.next.retry", "v1.next", "v1.train.retry", "v1.train"]


def test_celery_revokes_a_trajectory_and_limits_the_rate(
    factory, start_worker, celery, broadcast, ledger
):
    start_worker(concurrency=4, **AT_ONCE)
    assert "ok" in celery("control", "rate_limit", "hermes_queue.run_trajectory", "2/h")
    first, *_ = factory.enqueue(4, seconds=600)
    factory.wait_running(1)
    answer = celery("control", "time_limit", "hermes_queue.run_trajectory", "1")
    assert "no effect here" in answer["error"]
    assert ledger.run_status("run").queued == 3
    assert "ok" in broadcast("rate_limit", task_name="hermes_queue.run_trajectory", rate_limit=0)
    factory.wait_running(4)
    celery("control", "terminate", "SIGTERM", f"{first.trajectory_id}.1")
    wait_until("it was published", lambda: ledger.run_status("run").failed == 1)
    [record] = published_records(factory.ledger)
    assert (record.trajectory_id, record.stop_reason) == (first.trajectory_id, "cancelled")


def test_what_waits_ends_when_it_is_revoked_and_what_runs_when_it_is_cancelled(
    factory, start_worker, broadcast, command, ledger
):
    """A job that Celery was told to drop used to keep its group open for ever."""
    start_worker(concurrency=1, **AT_ONCE)
    [runs] = factory.enqueue(1, seconds=600)
    factory.wait_running(1)
    [waits, late] = factory.enqueue(3, seconds=0)[1:]
    broadcast("revoke", task_id=[f"{waits.trajectory_id}.1"])
    wait_until("it is due", lambda: ledger.client.hget(f"hq:traj:{waits.trajectory_id}", "cancel"))
    output = command(
        "hermes_queue.cli", "run", "cancel", "--trajectory", runs.trajectory_id, "--yes"
    )
    assert "its worker stops it" in output
    records = {record.trajectory_id: record for record in factory.wait_done()}
    assert {name: record.stop_reason for name, record in records.items()} == {
        runs.trajectory_id: "cancelled",
        waits.trajectory_id: "cancelled",
        late.trajectory_id: "no_tool_call",
    }
    assert "remote control" in records[waits.trajectory_id].failure.message


def test_what_workers_tell_of_attempts_is_counted(factory, start_worker, ledger: Ledger):
    worker = start_worker(concurrency=2)
    factory.enqueue(3, seconds=0)
    factory.wait_done()
    worker.terminate()
    seen = overview(ledger)
    assert dict(seen.lately.attempts) == {"": 3}
    assert dict(seen.lately.ended) == {"run": 3}
