from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import make_certificates
from redis_sentinels import RedisSentinels
from redis_server import redis_binary_of


@pytest.fixture(scope="session")
def redis_7() -> str:
    """The directory of a redis-server 7."""
    return str(Path(redis_binary_of("redis-7")).parent)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def start_sentinels(tmp_path: Path, redis_7: str) -> Iterator[Callable[..., RedisSentinels]]:
    started: list[RedisSentinels] = []

    def start(**options: object) -> RedisSentinels:
        made = RedisSentinels(tmp_path / f"redis-{len(started)}", redis_7, **options)
        started.append(made)
        return made.start()

    yield start
    for each in started:
        each.close()


@pytest.fixture
def sentinels(start_sentinels: Callable[..., RedisSentinels]) -> RedisSentinels:
    return start_sentinels()
