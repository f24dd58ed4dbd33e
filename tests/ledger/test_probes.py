"""Verdicts of model probes in Redis."""

from __future__ import annotations

from typing import cast

from redis_server import RedisServer

from hermes_queue.ledger import Ledger
from workers.calls.shared_probes import SharedProbes


async def test_a_verdict_is_kept_per_endpoint_and_model_until_it_expires(ledger: Ledger) -> None:
    probes = SharedProbes(ledger)
    await probes.save("http://a/v1", "m", "honoured", ttl_s=600)
    await probes.save("http://a/v1", "n", "dropped", ttl_s=60)
    assert await probes.load("http://a/v1", "m") == "honoured"
    assert await probes.load("http://a/v1", "n") == "dropped"
    assert await probes.load("http://b/v1", "m") is None
    ttls = sorted(cast(int, ledger.client.pttl(key)) for key in ledger.client.keys("*"))
    assert 0 < ttls[0] <= 60_000 < ttls[1] <= 600_000


async def test_the_last_verdict_stands(ledger: Ledger) -> None:
    probes = SharedProbes(ledger)
    await probes.save("http://a/v1", "m", "honoured", ttl_s=60)
    await probes.save("http://a/v1", "m", "dropped", ttl_s=60)
    assert await probes.load("http://a/v1", "m") == "dropped"


async def test_workers_share_verdicts_and_do_without_while_redis_is_away(
    redis_server: RedisServer,
) -> None:
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        shared = SharedProbes(ledger)
        await shared.save("http://a/v1", "m", "honoured", 60)
        assert await SharedProbes(ledger).load("http://a/v1", "m") == "honoured"
        redis_server.kill9()
        assert await shared.load("http://a/v1", "m") is None
        await shared.save("http://a/v1", "m", "dropped", 60)
