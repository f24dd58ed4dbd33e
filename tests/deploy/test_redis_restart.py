"""A restart of Redis under our users brings back all that was written before."""

from __future__ import annotations

from contextlib import closing

import pytest
import redis
from guarded_redis import GuardedRedis
from stream_groups import publish

from hermes_queue.ledger import Ledger


def contents(guarded: GuardedRedis) -> dict[str, object]:
    """Every key of ours and its value: as Redis packs it, but for sets, which have no order."""
    with redis.Redis.from_url(guarded.url("worker")) as client:
        return {
            key.decode(): client.smembers(key) if client.type(key) == b"set" else client.dump(key)
            for key in client.scan_iter("hq:*")
        }


@pytest.fixture
def restarted(tmp_path, redis_7):
    server = GuardedRedis(tmp_path / "restarted", redis_7)
    try:
        yield server.start()
    finally:
        server.close()


def test_what_scripts_and_transactions_have_written_is_read_back(restarted):
    with closing(Ledger.connect(url=restarted.url("worker"))) as ledger:
        publish(ledger, "r1")
        ledger.deployment_id()
        with ledger.client.pipeline() as pipe:
            pipe.set("hq:worker:one", "1").zadd("hq:workers", {"one": 1}).execute()
    before = contents(restarted)
    restarted.close()
    restarted.start()
    assert contents(restarted) == before


def test_still_nobody_gets_in_without_a_user(restarted):
    with redis.Redis(port=restarted.port) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    for password in ("", "default", "@DEFAULT@"):
        with (
            redis.Redis(port=restarted.port, username="default", password=password) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
