"""A Redis, workers with metrics, and an exporter."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from exporter_process import exporter
from redis_server import RedisServer
from worker_process import WorkerProcess, closing_workers

__all__ = ["exporter"]


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
def taken_port() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
