"""Workers on this test's Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer
from worker_process import WorkerProcess, closing_workers


@pytest.fixture
def start_worker(
    redis_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    with closing_workers(redis_server.url, tmp_path / "workers") as start:
        yield start
