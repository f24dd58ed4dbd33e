"""A `hermes-queue exporter` as a fixture."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer
from worker_process import wait_until
from zygote import zygote


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
