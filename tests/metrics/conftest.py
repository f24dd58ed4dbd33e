"""A Redis, workers with metrics, and an exporter."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer
from worker_process import WorkerProcess, closing_workers, wait_until
from zygote import zygote


@pytest.fixture
def start_worker(
    redis_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    defaults = {
        "HERMES_QUEUE_METRICS_WORKER_PORT": "0",
        "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
        # None is killed here, and one that is late with a beat is still there.
        "HERMES_QUEUE_LEASE_DURATION_S": "60",
    }
    with closing_workers(redis_server.url, tmp_path / "workers", **defaults) as start:
        yield start


@pytest.fixture
def exporter(redis_server: RedisServer, tmp_path: Path) -> Iterator[str]:
    """The base URL of a `hermes-queue exporter`."""
    environment = {
        **os.environ,
        "HERMES_QUEUE_REDIS_URL": redis_server.url,
        "HERMES_QUEUE_METRICS_SCAN_S": "0.1",
    }
    shown = tmp_path / "exporter"
    with shown.open("wb") as out, shown.with_suffix(".log").open("wb") as log:
        words = ("exporter", "--port", "0")
        process = zygote().start("hermes_queue.cli", words, environment, out, error=log)
    try:
        wait_until("its address", lambda: "\n" in shown.read_text())
        yield shown.read_text().splitlines()[0].removesuffix("/metrics")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
