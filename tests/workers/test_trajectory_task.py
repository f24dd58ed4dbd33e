"""What the task does with a lease, and with a delivery that the ledger does not know."""

from __future__ import annotations

import logging
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
from hermes_queue.sandbox.base import Capabilities
from hermes_queue.settings import WorkerSettings
from hermes_queue.telemetry import logs
from hermes_queue.telemetry.meter import PrometheusMeter
from hermes_queue.telemetry.scrubbing import Scrubber
from workers import runtime as runtimes
from workers.runtime import Runtime
from workers.spool import Spool
from workers.trajectory import run_trajectory


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
    code = tmp_path / "their_env.py"
    code.write_text(
        "from envs.gsm8k import Gsm8k\n"
        "class Theirs(Gsm8k):\n"
        "    def spec(self, item, profile):\n"
        "        return {}['the-secret!']\n"
        "ENV = Theirs()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    runtime.ledger, runtime.worker = ledger, WorkerSettings(imports="their_env")
    job = make_job(env="their_env:ENV", item={"question": "1+1", "answer": "#### 2"})
    ledger.enqueue("run", [job], config={})
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
