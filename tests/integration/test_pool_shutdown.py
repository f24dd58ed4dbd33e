"""The coroutine pool when its worker ends, cannot start, or loses Redis."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from celery_worker import CeleryWorker, eventually, running_worker
from redis_server import RedisServer

from hermes_queue.broker.pool.task_pool import STACKS_SHOWN

pytestmark = pytest.mark.redis


def start_sleeping(worker: CeleryWorker, seconds: float, *, early: bool = False) -> str:
    """A job that has marked its start."""
    task_id = worker.send("sleep", seconds, kwargs={"early": early})
    eventually(lambda: worker.marked("start", task_id))
    return task_id


def test_two_hundred_jobs_sleep_at_the_same_time(redis_server: RedisServer, tmp_path: Path) -> None:
    with running_worker(redis_server, tmp_path / "worker", concurrency=200) as worker:
        ids = [worker.send("sleep", 60, kwargs={"early": True}) for _ in range(200)]
        eventually(lambda: sum(line[0] == "start" for line in worker.marks) == 200)
        assert worker.stats()["running"] == 200
        assert worker.stats()["threads"] < 20
        worker.app.control.revoke(ids, terminate=True)
        eventually(lambda: sum(line[0] == "cancelled" for line in worker.marks) == 200)


def test_sigterm_lets_running_jobs_finish_and_leaves_the_rest_in_the_queue(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with running_worker(redis_server, tmp_path / "worker", concurrency=2) as worker:
        running = [start_sleeping(worker, 5), start_sleeping(worker, 5, early=True)]
        waiting = worker.send("sleep", 0)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert all(worker.marked("end", task_id) for task_id in running)
        for task_id in running:
            worker.event(task_id, "succeeded")
        assert not worker.marked("start", waiting)
        assert (worker.queued(), worker.unacknowledged()) == (1, 0)
        assert worker.marks[-1] == ["closed"]


def test_sigterm_cancels_what_outlasts_the_drain(redis_server: RedisServer, tmp_path: Path) -> None:
    setting = {"HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "0.5"}
    with running_worker(redis_server, tmp_path / "worker", **setting) as worker:
        short = start_sleeping(worker, 0.2, early=True)
        long = start_sleeping(worker, 600, early=True)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert worker.marked("end", short)
        assert worker.marked("cancelled", long, "shutdown")
        assert worker.marks[-1] == ["closed"]


@pytest.mark.fleet
def test_a_cold_shutdown_cancels_at_once_and_requeues_unacknowledged_messages(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    remap = {"REMAP_SIGTERM": "SIGQUIT"}
    with running_worker(redis_server, tmp_path / "worker", **remap) as worker:
        late = start_sleeping(worker, 600)
        early = start_sleeping(worker, 600, early=True)
        worker.signal(signal.SIGTERM)
        worker.wait()
        assert worker.marked("cancelled", late, "shutdown")
        assert worker.marked("cancelled", early, "shutdown")
        assert (worker.queued(), worker.unacknowledged()) == (1, 0)
        assert worker.marks[-1] == ["closed"]
        assert "Traceback" not in worker.log


@pytest.mark.fleet
def test_a_second_signal_during_the_drain_ends_the_worker(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with running_worker(redis_server, tmp_path / "worker") as worker:
        task_id = start_sleeping(worker, 600, early=True)
        worker.signal(signal.SIGTERM)
        eventually(lambda: "Warm shutdown" in worker.log)
        worker.signal(signal.SIGQUIT)
        worker.wait()
        assert worker.marked("cancelled", task_id, "shutdown")


@pytest.mark.fleet
def test_stubborn_jobs_keep_the_worker_neither_from_ending_nor_its_log_readable(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    setting = {"HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "0.1"}
    with running_worker(redis_server, tmp_path / "worker", 17, **setting) as worker:
        task_ids = [worker.send("stubborn", 2) for _ in range(17)]
        for task_id in task_ids:
            eventually(lambda one=task_id: worker.marked("start", one))
        worker.signal(signal.SIGTERM)
        worker.wait()
        shown = [each for each in task_ids if f"Job {each} swallowed two canc" in worker.log]
        assert len(shown) == STACKS_SHOWN
        assert worker.log.count("16 jobs have swallowed two cancellations (shutdown)") == 1


def test_a_failing_start_hook_ends_the_worker_with_its_reason_and_exit_code(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    worker = CeleryWorker(redis_server, tmp_path / "worker")
    try:
        worker.launch(POOL_JOBS_REFUSE="1")
        assert worker.wait() == 3
        assert "The worker cannot start: no fence on this machine" in worker.log
        assert "Traceback" not in worker.log
        assert worker.marks == [["opened"], ["closed"]]
    finally:
        worker.close()


def test_killing_redis_under_an_early_acknowledged_job_hurts_neither_it_nor_the_worker(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with running_worker(redis_server, tmp_path / "worker") as worker:
        task_id = start_sleeping(worker, 1.5, early=True)
        redis_server.kill9()
        eventually(lambda: worker.marked("end", task_id))
        redis_server.start()
        later = worker.send("sleep", 0, kwargs={"early": True})
        eventually(lambda: worker.marked("end", later))
        assert sum(line[:2] == ["start", task_id] for line in worker.marks) == 1
        assert "Unrecoverable" not in worker.log


def test_acknowledging_while_redis_is_away_answers_no_and_hurts_nothing(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with running_worker(redis_server, tmp_path / "worker") as worker:
        task_id = worker.send("acknowledge_late")
        eventually(lambda: worker.marked("start", task_id))
        redis_server.kill9()
        worker.go()
        eventually(lambda: worker.marked("acknowledged", task_id, "False", "False"))
        redis_server.start()
        later = worker.send("sleep", 0, kwargs={"early": True})
        eventually(lambda: worker.marked("end", later))
        assert "Unrecoverable" not in worker.log


def test_a_message_that_outlives_its_connection_is_acknowledged_on_the_next(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with running_worker(redis_server, tmp_path / "worker") as worker:
        task_id = worker.send("acknowledge_late")
        eventually(lambda: worker.marked("start", task_id))
        redis_server.kill9()
        redis_server.start()
        later = worker.send("sleep", 0)
        eventually(lambda: worker.marked("end", later))
        worker.go()
        eventually(lambda: worker.marked("acknowledged", task_id, "True", "True"))
        eventually(lambda: worker.unacknowledged() == 0)
        assert sum(line[:2] == ["start", task_id] for line in worker.marks) == 1


def test_a_reset_of_all_connections_starts_no_job_twice(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with running_worker(redis_server, tmp_path / "worker") as worker:
        ids = [worker.send("sleep", 2.0, kwargs={"early": n > 0}) for n in range(3)]
        eventually(lambda: all(worker.marked("start", task_id) for task_id in ids))
        with redis_server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        later = worker.send("sleep", 0, kwargs={"early": True})
        for task_id in [*ids, later]:
            eventually(lambda task_id=task_id: worker.marked("end", task_id))
        assert sorted(line[1] for line in worker.marks if line[0] == "start") == sorted(
            [*ids, later]
        )
        eventually(lambda: worker.unacknowledged() == 0)  # after the last mark of the first one
