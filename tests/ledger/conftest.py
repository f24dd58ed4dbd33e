"""The ledger on every server it must run on: Redis 7, Redis 6.2, and fakeredis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
from redis_server import RedisServer, redis_binary_of

from hermes_queue.ledger import Ledger


@pytest.fixture(params=["redis-7", "redis-6.2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(redis_binary_of(request.param), tmp_path / "r")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(params=["redis-7", "redis-6.2", "fakeredis"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    if request.param == "fakeredis":
        fake = fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="redis"))
        yield Ledger(fake, prefix="hq:")
        return
    server = RedisServer(redis_binary_of(request.param), tmp_path / "r")
    try:
        server.start()
        with server.client(decode_responses=False) as client:
            yield Ledger(client, prefix="hq:", url=server.url)
    finally:
        server.close()
