"""A Redis with the users that we ship: a worker, and our commands, as each of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guarded_redis import ROOT, GuardedRedis
from redis_server import redis_binary_of
from worker_process import WorkerProcess
from zygote import run_forked


@pytest.fixture(scope="module")
def redis_7() -> str:
    """The directory of a redis-server 7."""
    return str(Path(redis_binary_of("redis-7")).parent)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, redis_7: str) -> Iterator[GuardedRedis]:
    server = GuardedRedis(
        tmp_path_factory.mktemp("guarded"), redis_7, options=("--maxmemory", "1gb")
    )
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="module")
def worker(
    guarded: GuardedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    """A worker under its own user; none is killed here, so one that is late with a beat lives."""
    process = WorkerProcess(
        guarded.url("worker"),
        tmp_path_factory.mktemp("worker"),
        HERMES_QUEUE_LEASE_DURATION_S="60",
    )
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def as_role(guarded: GuardedRedis) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command of ours under one role's user."""

    def run(role: str, program: str, *rest: str) -> subprocess.CompletedProcess[str]:
        return run_forked(
            "hermes_queue.cli" if program == "hermes-queue" else program,
            *rest,
            environment={
                **os.environ,
                "HERMES_QUEUE_REDIS_URL": guarded.url(role),
                "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}",
            },
        )

    return run
