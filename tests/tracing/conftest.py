"""A collector, and workers that export to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from otlp_receiver import Receiver, otlp_receiver
from redis_server import RedisServer
from worker_process import WorkerProcess, closing_workers


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with otlp_receiver() as receiver:
        yield receiver
        assert receiver.refused == []


@pytest.fixture
def start_worker(
    redis_server: RedisServer, collector: Receiver, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    defaults = {
        "HERMES_QUEUE_OTEL_ENDPOINT": collector.url,
        "HERMES_QUEUE_OTEL_SAMPLE": "1",
        "HERMES_QUEUE_OTEL_INTERVAL_S": "0.1",
        "HERMES_QUEUE_OTEL_SHUTDOWN_S": "30",
        "HERMES_QUEUE_RETRY_BACKOFF_S": "0.1",
        "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
        "HERMES_QUEUE_LEASE_DURATION_S": "60",
    }
    with closing_workers(redis_server.url, tmp_path / "workers", **defaults) as start:
        yield start
