"""What the heartbeat of a worker does while other things hang or end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from celery.worker import state as worker_state
from ledger_steps import publish as publish_record
from records import make_job, make_record
from redis_server import RedisServer
from worker_process import wait_until

from hermes_queue.broker import pool
from hermes_queue.broker.pool.intake import shutdown_is_ordered
from hermes_queue.errors import RedisUnavailable, SandboxError
from hermes_queue.ledger import Claim, Ledger
from hermes_queue.ledger.fleet.lanes import EndedAttempts as Ended
from hermes_queue.ledger.fleet.lanes import Watched
from hermes_queue.ledger.tasks import TaskMemory
from hermes_queue.models import TrajectoryProvenance
from hermes_queue.settings import LeaseSettings
from workers.runtime import AttemptProgress, Runtime
from workers.spool import Spool
from workers.upkeep.inventory import Inventory
from workers.upkeep.keeper import Keeper

TASK = "a" * 64
AT_WORK = AttemptProgress("agent", 0.0)


class AnsweringLoop:
    """An event loop that is never blocked."""

    loop_silent_s = 0.0

    def loop_stack(self) -> str:
        return ""

    def on_loop_now(self) -> None:
        return None


@pytest.fixture
def stopped() -> list[tuple[object, str]]:
    """The jobs that were stopped, each with the reason."""
    return []


@pytest.fixture
def keeper(tmp_path: Path, redis_server: RedisServer, monkeypatch, stopped):
    """Of a worker with one job, whose lease is short."""
    monkeypatch.setattr(pool.TaskPool, "_instance", pool.TaskPool(1))
    ledger = Ledger.connect(url=redis_server.url)
    spool = Spool(tmp_path, "d", "w")
    lease = LeaseSettings(duration_s=1000.0, renew_s=0.2, sweep_s=0.2, mover_s=0.1)
    runtime = Runtime(owner="w", ledger=ledger, backend=None, spool=spool, lease=lease)  # type: ignore[arg-type]
    loop = AnsweringLoop()
    inventory = Inventory(ledger, "local")
    keeper = Keeper(
        runtime,
        on_lost=lambda job, reason: stopped.append((job, reason)),
        facts=dict,
        loop=loop,
        inventory=inventory,
    )
    yield keeper, runtime
    keeper.stop()
    ledger.close()
    runtime.executor.shutdown()


def test_a_mover_that_hangs_costs_no_lease(keeper, monkeypatch):
    keeper, runtime = keeper
    ledger = runtime.ledger
    hangs, released = threading.Event(), threading.Event()

    def hang(_: Ledger) -> None:
        hangs.set()
        released.wait()

    monkeypatch.setattr("workers.upkeep.keeper.publish_due", hang)
    job = make_job()
    ledger.enqueue("run", [job], config={})
    begun = ledger.begin(job.trajectory_id, 1, owner="w", lease_s=5, nonce="n")
    try:
        with runtime.leased(Claim(job.trajectory_id, begun.epoch), None, lambda: AT_WORK):  # type: ignore[arg-type]
            keeper.start()
            assert hangs.wait(20)
            until = time.time() + 900
            wait_until(
                "the lease is renewed",
                lambda: ledger.client.zscore("hq:leases", job.trajectory_id) > until,
                timeout_s=20,
            )
    finally:
        released.set()


def test_a_worker_that_is_told_to_go_says_so(keeper, monkeypatch):
    keeper, runtime = keeper
    keeper.start()
    assert not shutdown_is_ordered()
    assert runtime.ledger.client.hget("hq:life:w", "told") is None
    monkeypatch.setattr(worker_state, "should_stop", 0)  # the exit code that Celery puts there
    wait_until("it says so", lambda: runtime.ledger.client.hget("hq:life:w", "told") == b"1")


def test_what_is_finished_is_published_though_redis_calls_it_final(keeper, stopped):
    keeper, runtime = keeper
    ledger = runtime.ledger
    jobs = [make_job(instance=name) for name in ("finished", "at work")]
    ledger.enqueue("run", jobs, config={})
    claims = []
    for job in jobs:
        begun = ledger.begin(job.trajectory_id, 1, owner="w", lease_s=5, nonce="n")
        publish_record(ledger, make_record(job))  # by a worker that had it before
        claims.append(Claim(job.trajectory_id, begun.epoch))
    finished = AttemptProgress("verify", 0.0, is_finished=True)
    with (
        runtime.leased(claims[0], "finished", lambda: finished),  # type: ignore[arg-type]
        runtime.leased(claims[1], "at work", lambda: AT_WORK),  # type: ignore[arg-type]
    ):
        keeper.start()
        wait_until("two beats", lambda: len(stopped) >= 2)
    assert set(stopped) == {("at work", "final")}


def record_of_task():
    facts = TrajectoryProvenance(item_sha256=TASK)
    return make_record(make_job()).model_copy(update={"provenance": facts})


def attempts_remembered(ledger: Ledger) -> int:
    task = TaskMemory(ledger).get("gsm8k", TASK)
    return task.attempts if task else 0


def test_accepted_records_are_in_the_memory_of_tasks_when_the_worker_has_ended(keeper):
    keeper, runtime = keeper
    for verdict in ("ok", "group", "final", "stale"):
        runtime.published(record_of_task(), verdict)
    keeper.stop()
    assert attempts_remembered(runtime.ledger) == 2


def test_what_could_not_be_remembered_is_remembered_later(keeper, monkeypatch):
    keeper, runtime = keeper
    runtime.published(record_of_task(), "ok")

    def fail(*_, **__):
        raise RedisUnavailable("away")

    with monkeypatch.context() as away:
        away.setattr(keeper._ledger, "call", fail)
        with pytest.raises(RedisUnavailable):
            keeper._report_tasks()
    keeper._report_tasks()
    assert attempts_remembered(runtime.ledger) == 1


def test_a_worker_that_shall_remember_nothing_notes_nothing(keeper):
    keeper, runtime = keeper
    runtime.tasks = None
    runtime.published(record_of_task(), "ok")
    keeper.stop()
    assert attempts_remembered(runtime.ledger) == 0


def test_counts_for_the_breakers_outlast_a_report_that_fails_for_any_reason(keeper, monkeypatch):
    keeper, runtime = keeper

    def refuse(*_: object) -> str:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(keeper._breakers, "record", refuse)
    runtime.outcomes.note("train", make_job(), SandboxError("gone"))
    with pytest.raises(ZeroDivisionError):
        keeper._report_outcomes()
    assert runtime.outcomes.take() == {Watched("train"): {"sandbox": Ended(1, "gone", "run")}}
