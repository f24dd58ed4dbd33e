"""The coroutine pool in a real worker that serves many jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery_worker import CeleryWorker, eventually, running_worker
from redis_server import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def worker(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CeleryWorker]:
    """One worker of four slots for all tests of this file; each leaves it idle."""
    directory: Path = tmp_path_factory.mktemp("pool")
    server = RedisServer(redis_binary, directory / "redis")
    try:
        server.start()
        watchdog = {"HERMES_QUEUE_WORKER_WATCHDOG_S": "2"}
        with running_worker(server, directory / "worker", **watchdog) as worker:
            yield worker
    finally:
        server.close()


def resized(worker: CeleryWorker, command: str, n: int) -> dict[str, Any]:
    """What the worker answers to `pool_grow` or `pool_shrink`, however long that takes."""
    [reply] = getattr(worker.app.control, command)(n, reply=True, timeout=60, limit=1)
    [answer] = reply.values()
    return dict(answer)


def started(worker: CeleryWorker, ids: list[str]) -> int:
    """How many of the jobs `ids` have begun."""
    return sum(worker.marked("start", task_id) for task_id in ids)


def most_at_once(worker: CeleryWorker, ids: list[str]) -> int:
    """How many of the jobs `ids` ran at the same time."""
    running = most = 0
    for what, task_id, *_ in (line for line in worker.marks if len(line) > 1):
        if task_id in ids:
            running += {"start": 1, "end": -1}.get(what, 0)
            most = max(most, running)
    return most


def test_a_coroutine_task_is_seen_as_started_and_succeeded(worker: CeleryWorker) -> None:
    task_id = worker.send("add", 2, 3)
    succeeded = worker.event(task_id, "succeeded")
    assert succeeded["result"] == "5"
    assert worker.events_of(task_id) == ["received", "started", "succeeded"]


def test_the_runtime_is_that_of_the_body(worker: CeleryWorker) -> None:
    task_id = worker.send("sleep", 0.4)
    assert 0.4 <= worker.event(task_id, "succeeded")["runtime"] < 10


def test_an_exception_is_seen_as_failure_with_its_traceback(worker: CeleryWorker) -> None:
    failed = worker.event(worker.send("fail"), "failed")
    assert failed["exception"] == "ValueError('out of order')"
    assert "pool_jobs.py" in failed["traceback"]


def test_a_task_that_exits_fails_and_the_worker_goes_on(worker: CeleryWorker) -> None:
    failed = worker.event(worker.send("exit"), "failed")
    assert "SystemExit(7)" in failed["exception"]
    assert worker.event(worker.send("add", 1, 1), "succeeded")


def test_wrong_arguments_are_a_failure(worker: CeleryWorker) -> None:
    assert "TypeError" in worker.event(worker.send("add", 1), "failed")["exception"]


def test_a_task_that_is_no_coroutine_function_fails(worker: CeleryWorker) -> None:
    failed = worker.event(worker.send("threaded"), "failed")
    assert "threaded is not a coroutine function" in failed["exception"]


def test_the_soft_limit_is_raised_inside_the_body(worker: CeleryWorker) -> None:
    task_id = worker.send("sleep", 60, soft_time_limit=0.2)
    failed = worker.event(task_id, "failed")
    assert failed["exception"].startswith("SoftTimeLimitExceeded(0.2")
    assert worker.marked("cancelled", task_id, "soft", "SoftLimitCancellation")


def test_a_body_survives_the_soft_limit_and_its_task_group_ends_first(
    worker: CeleryWorker,
) -> None:
    task_id = worker.send("grouped")
    assert worker.event(task_id, "succeeded")["result"] == "'survived'"
    lines = [line for line in worker.marks if task_id in line]
    assert [line[0] for line in lines] == ["child", "child", "cancelled"]


def test_the_hard_limit_ends_the_body_and_is_seen_as_failure(worker: CeleryWorker) -> None:
    task_id = worker.send("sleep", 60, time_limit=0.2)
    failed = worker.event(task_id, "failed")
    assert "TimeLimitExceeded(0.2" in failed["traceback"]
    assert worker.marked("cancelled", task_id, "hard", "CancelledError")
    assert worker.events_of(task_id).count("failed") == 1


def test_a_swallowed_cancellation_is_followed_by_a_second(worker: CeleryWorker) -> None:
    task_id = worker.send("stubborn", 1, time_limit=0.2)
    worker.event(task_id, "failed")
    assert worker.marks.count(["cancelled", task_id, "hard"]) == 2


def test_a_body_that_swallows_both_is_given_up_with_its_stack(worker: CeleryWorker) -> None:
    task_id = worker.send("stubborn", 2, time_limit=0.2)
    worker.event(task_id, "failed")
    log = worker.log
    assert f"Job {task_id} swallowed two cancellations (hard)" in log
    assert "await asyncio.sleep(60)" in log.split(f"Job {task_id} swallowed")[1]
    assert worker.stats()["running"] == 0


def test_revoking_with_terminate_stops_a_running_job(worker: CeleryWorker) -> None:
    task_id = worker.send("sleep", 60)
    eventually(lambda: worker.marked("start", task_id))
    worker.event(task_id, "started")  # another thread than the one that will say "revoked"
    worker.app.control.revoke(task_id, terminate=True)
    worker.event(task_id, "revoked")
    eventually(lambda: worker.marked("cancelled", task_id, "terminate"))
    assert worker.events_of(task_id) == ["received", "started", "revoked"]
    eventually(lambda: worker.unacknowledged() == 0)


def test_a_job_whose_lease_is_lost_is_cancelled_with_that_reason(worker: CeleryWorker) -> None:
    task_id = worker.send("sleep", 60)
    eventually(lambda: worker.marked("start", task_id))
    assert worker.event(worker.send("lose", task_id), "succeeded")["result"] == "True"
    worker.event(task_id, "revoked")
    assert worker.marked("cancelled", task_id, "lease_lost")


def test_cancelling_a_job_that_has_ended_says_so(worker: CeleryWorker) -> None:
    task_id = worker.send("sleep", 0)
    worker.event(task_id, "succeeded")
    eventually(lambda: worker.stats()["running"] == 0)
    assert worker.event(worker.send("lose", task_id), "succeeded")["result"] == "False"


def test_an_early_acknowledged_message_is_gone_while_its_job_runs(worker: CeleryWorker) -> None:
    task_id = worker.send("gated", "acknowledged", kwargs={"early": True})
    eventually(lambda: worker.marked("start", task_id, "True"))
    assert worker.unacknowledged() == 0
    assert not worker.marked("end", task_id)
    worker.go("acknowledged")
    worker.event(task_id, "succeeded")


def test_acknowledging_twice_is_harmless(worker: CeleryWorker) -> None:
    worker.go()
    task_id = worker.send("acknowledge_late")
    worker.event(task_id, "succeeded")
    assert worker.marked("acknowledged", task_id, "True", "True")


def test_what_is_no_task_message_is_dropped_and_the_worker_goes_on(worker: CeleryWorker) -> None:
    headers = {"task": "add", "id": [1], "timelimit": ["x", "y"]}
    properties = {"delivery_tag": "t", "delivery_info": {}}
    malformed = {"headers": headers, "properties": properties, "body": "[[1, 2], {}, null]"}
    client = worker.server.client()
    for raw in ("[]", "no JSON", json.dumps(malformed)):
        client.lpush("celery", raw)
        client.publish("/0.celery.pidbox", raw)
    assert worker.event(worker.send("add", 2, 3), "succeeded")["result"] == "5"
    assert worker.unacknowledged() == 0
    dropped = [line for line in worker.log.splitlines() if "a message of celery is dropped" in line]
    assert len(dropped) == 3
    assert "headers.id" in dropped[-1]
    # A broadcast that cannot be read makes Celery subscribe anew; a command sent meanwhile is lost.
    eventually(lambda: worker.app.control.ping(timeout=5, limit=1))


def test_no_message_is_taken_and_no_job_runs_beyond_the_slots(worker: CeleryWorker) -> None:
    ids = [worker.send("gated", "slots", kwargs={"early": n % 2 == 0}) for n in range(12)]
    eventually(lambda: started(worker, ids) == 4)
    assert worker.queued() == 8
    worker.go("slots")
    for task_id in ids:
        worker.event(task_id, "succeeded")
    assert most_at_once(worker, ids) == 4


def test_grow_and_shrink_change_how_many_jobs_run(worker: CeleryWorker) -> None:
    assert "ok" in resized(worker, "pool_grow", 4)
    ids = [worker.send("gated", "grown") for _ in range(12)]
    eventually(lambda: started(worker, ids) == 8)
    worker.go("grown")
    for task_id in ids:
        worker.event(task_id, "succeeded")
    assert most_at_once(worker, ids) == 8
    assert "ok" in resized(worker, "pool_shrink", 6)
    assert worker.stats()["max-concurrency"] == 2
    ids = [worker.send("gated", "shrunk") for _ in range(5)]
    eventually(lambda: started(worker, ids) == 2)
    worker.go("shrunk")
    for task_id in ids:
        worker.event(task_id, "succeeded")
    assert most_at_once(worker, ids) == 2
    assert "ok" in resized(worker, "pool_grow", 2)


def test_the_last_slot_cannot_be_taken_away(worker: CeleryWorker) -> None:
    assert "one must remain" in str(resized(worker, "pool_shrink", 4))
    assert worker.stats()["max-concurrency"] == 4


def test_a_blocked_loop_is_logged_once_with_its_stack_and_its_recovery(
    worker: CeleryWorker,
) -> None:
    before = worker.stats()["loop-stalls"]
    worker.event(worker.send("block", 5.0), "succeeded")
    log = worker.log
    assert "time.sleep(seconds)" in log.split("The event loop has not ticked for 2.0 s")[-1]
    eventually(lambda: "The event loop ticks again after" in worker.log)
    assert worker.stats()["loop-stalls"] == before + 1


def test_inspect_stats_describes_the_pool(worker: CeleryWorker) -> None:
    pool = worker.stats()
    assert pool["implementation"] == "hermes_queue.broker.pool.task_pool:TaskPool"
    assert {"running", "waiting", "abandoned", "max-concurrency"} <= pool.keys()
