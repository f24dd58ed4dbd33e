from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_stack import Stack
from redis_server import redis_binary_of
from roles_redis import as_role, guarded, redis_7, worker

__all__ = ["as_role", "guarded", "redis_7", "worker"]  # fixtures of several folders


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("stack"))
    try:
        made.start("redis", PATH=f"{Path(redis_binary_of('redis-7')).parent}:/usr/bin:/bin")
        made.wait_for("redis", "Ready to accept connections")
        yield made
    finally:
        made.close()
