"""What the task does with a lease, and with a delivery that the ledger does not know."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from records import make_job

from hermes_queue.bodies import codec
from hermes_queue.broker.pool import RunningTask, running
from hermes_queue.keyspace.calls import ScriptCall
from hermes_queue.ledger import Ledger
from hermes_queue.models import TrajectoryJob
from hermes_queue.sandbox.base import Capabilities
from hermes_queue.settings import RetrySettings, WorkerSettings
from hermes_queue.telemetry import logs
from hermes_queue.telemetry.meter import PrometheusMeter
from hermes_queue.telemetry.scrubbing import Scrubber
from workers import runtime as runtimes
from workers.runtime import Runtime
from workers.spool import Spool
from workers.trajectory import run_trajectory
from workers.upkeep.recovery import publish_leftovers


class NoBackend:
    """No job gets as far as a slot."""

    capabilities = Capabilities(isolation=True)


class Refusing(Ledger):
    """A ledger that takes no record, for a reason that nobody has foreseen."""

    def make_all(self, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        error = ZeroDivisionError("unforeseen")
        others = iter(super().make_all([call for call in calls if call.script != "publish"]))
        return [error if call.script == "publish" else next(others) for call in calls]


@pytest.fixture
def runtime(ledger: Ledger, tmp_path: Path) -> Iterator[Runtime]:
    spool = Spool(tmp_path, "d", "me")
    refusing = Refusing(ledger.client, prefix="hq:", url=ledger.url)
    made = Runtime(owner="me", ledger=refusing, backend=cast(Any, NoBackend()), spool=spool)
    runtimes.install(made)
    threads = ThreadPoolExecutor(1)
    token = running._current.set(RunningTask("id", None, threads))
    yield made
    running._current.reset(token)
    runtimes.install(None)
    threads.shutdown()
    made.executor.shutdown()


def job_of_their_env(
    ledger: Ledger, runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> tuple[TrajectoryJob, Path]:
    """A waiting job of an env whose fourth line is `body`, and the file of the env."""
    code = folder / "their_env.py"
    code.write_text(
        "from envs.gsm8k import Gsm8k\n"
        "class Theirs(Gsm8k):\n"
        "    def spec(self, item, profile):\n"
        f"        {body}\n"
        "ENV = Theirs()\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "their_env", raising=False)
    importlib.invalidate_caches()
    runtime.ledger, runtime.worker = ledger, WorkerSettings(imports="their_env")
    job = make_job(env="their_env:ENV", item={"question": "1+1", "answer": "#### 2"})
    ledger.enqueue("run", [job], config={})
    return job, code


@pytest.mark.parametrize(("failed_before", "handed_back"), [(0, True), (5, False)])
async def test_an_error_of_ours_gives_the_lease_back_as_often_as_there_are_attempts(
    ledger: Ledger, runtime: Runtime, failed_before: int, handed_back: bool
) -> None:
    job = make_job(env="nowhere:ENV")
    ledger.enqueue("run", [job], config={})
    for attempt in range(1, failed_before + 2):
        with pytest.raises(ZeroDivisionError):
            await run_trajectory.run(job.trajectory_id, attempt)
    state, attempt = ledger.client.hmget(f"hq:traj:{job.trajectory_id}", "state", "attempt")
    expected = (b"queued", failed_before + 2) if handed_back else (b"running", failed_before + 1)
    assert (state, int(attempt)) == expected


async def test_a_delivery_that_redis_knows_nothing_of_is_a_warning_and_counted(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.meter = PrometheusMeter("worker", max_label_values=10)
    assert await run_trajectory.run("run.i.0", 1) == "unknown"
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "Redis has its message but not the job" in warning.getMessage()
    assert 'forgotten_total{what="delivery"} 1.0' in runtime.meter.exposition()[0].decode()


async def test_an_exception_of_an_env_is_logged_with_its_traceback_and_its_line_is_in_the_failure(
    ledger: Ledger,
    runtime: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job, code = job_of_their_env(ledger, runtime, tmp_path, monkeypatch, "return {}['the-secret!']")
    assert await run_trajectory.run(job.trajectory_id, 1) == "failed None (group)"
    body = ledger.client.get(f"hq:body:{job.trajectory_id}")
    failure = codec.decode_record(cast(bytes, body)).failure
    assert failure
    assert (failure.cause, failure.stage) == ("env_bug", "load")
    assert failure.message.endswith(f"({code}:4)")
    [logged] = [record for record in caplog.records if record.exc_info]
    text = logs.TextFormatter(Scrubber(["the-secret!"])).format(logged)
    assert f'File "{code}", line 4, in spec' in text
    assert "the-secret!" not in text


async def test_half_of_a_surrogate_pair_in_an_exception_costs_no_publication(
    ledger: Ledger, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("workers.trajectory")
    log.addHandler(runtime.log)
    monkeypatch.setattr(log, "propagate", False)  # pytest-xdist cannot send such a text
    bug = "raise ValueError(chr(0xD800))"
    job, _ = job_of_their_env(ledger, runtime, tmp_path, monkeypatch, bug)
    assert await run_trajectory.run(job.trajectory_id, 1) == "failed None (group)"
    log.removeHandler(runtime.log)
    body = ledger.client.get(f"hq:body:{job.trajectory_id}")
    failure = codec.decode_record(cast(bytes, body)).failure
    assert failure
    assert "ValueError: \\ud800 (" in failure.message
    assert b"ValueError: \\ud800" in cast(bytes, ledger.client.get("hq:log:me"))


async def test_a_log_that_cannot_be_stored_keeps_no_record_from_being_published(
    ledger: Ledger, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ZeroDivisionError("unforeseen")

    job, _ = job_of_their_env(ledger, runtime, tmp_path, monkeypatch, "raise ValueError")
    monkeypatch.setattr(Runtime, "report_log", refuse)
    assert await run_trajectory.run(job.trajectory_id, 1) == "failed None (group)"


async def test_the_record_of_a_task_that_failed_is_published_by_its_own_worker(
    ledger: Ledger, runtime: Runtime
) -> None:
    runtime.retry = RetrySettings(max_attempts=1)
    job = make_job(env="nowhere:ENV")
    ledger.enqueue("run", [job], config={})
    with pytest.raises(ZeroDivisionError):
        await run_trajectory.run(job.trajectory_id, 1)
    runtime.ledger = ledger
    assert publish_leftovers(runtime) == 1
    assert ledger.client.hget(f"hq:traj:{job.trajectory_id}", "state") == b"final"
    assert (publish_leftovers(runtime), runtime.spool.count()) == (0, 0)
