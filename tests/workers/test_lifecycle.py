"""What a worker process opens and closes, and in which order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis_server import RedisServer

from benchmarks.noop import NoopBackend
from hermes_queue.broker.pool import TaskPool
from hermes_queue.errors import SandboxError
from workers import lifecycle  # noqa: F401 - hooks itself into the pool
from workers import runtime as runtimes


class Lasting(NoopBackend):
    """A backend that is still needed by a job while it stops."""

    runtime: runtimes.Runtime
    handed_back = False

    async def stop(self) -> None:
        Lasting.handed_back = await self.runtime.in_thread(bool, 1)


@pytest.fixture
def pool(redis_server: RedisServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> TaskPool:
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    monkeypatch.setenv("HERMES_QUEUE_PATHS_SPOOL", str(tmp_path))
    monkeypatch.setenv("HERMES_QUEUE_SANDBOX_BACKEND", "test_lifecycle:Lasting")
    monkeypatch.syspath_prepend(str(tmp_path.joinpath(__file__).parent))
    return TaskPool(1)


def test_a_job_can_still_be_handed_back_while_the_backend_stops(
    pool: TaskPool,
) -> None:
    pool.on_start()
    runtime = runtimes.get()
    backend: Any = runtime.backend
    backend.runtime = runtime
    pool.on_stop()
    assert type(backend).handed_back
    with pytest.raises(RuntimeError):
        asyncio.run(runtime.in_thread(bool, 1))


def test_a_backend_that_is_away_ends_the_worker_with_one_line(
    pool: TaskPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(_: object) -> None:
        raise SandboxError("no engine answers")

    monkeypatch.setattr(NoopBackend, "start", start)
    with pytest.raises(SystemExit) as ended:
        pool.on_start()
    assert ended.value.code == 1
    [line] = [each for each in caplog.records if each.levelname == "CRITICAL"]
    assert line.getMessage() == "The worker cannot start: no engine answers"
    assert not line.exc_info
