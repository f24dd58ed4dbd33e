"""Verdicts of model probes in Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from hermes_queue.ledger.fleet.probes import Probes
from redis_server import RedisServer

from hermes_queue.ledger import Ledger
from workers.calls.shared_probes import SharedProbes
from workers.runtime import Runtime
from workers.spool import Spool


def test_a_verdict_is_kept_per_endpoint_and_model_until_it_expires(ledger: Ledger) -> None:
    probes = Probes(ledger)
    probes.save("http://a/v1", "m", "honoured", ttl_s=600)
    probes.save("http://a/v1", "n", "dropped", ttl_s=60)
    assert probes.load("http://a/v1", "m") == "honoured"
    assert probes.load("http://a/v1", "n") == "dropped"
    assert probes.load("http://b/v1", "m") is None
    ttls = sorted(cast(int, ledger.client.pttl(key)) for key in ledger.client.keys("*"))
    assert 0 < ttls[0] <= 60_000 < ttls[1] <= 600_000


def test_the_last_verdict_stands(ledger: Ledger) -> None:
    probes = Probes(ledger)
    for verdict in ("honoured", "dropped"):
        probes.save("http://a/v1", "m", verdict, ttl_s=60)
    assert probes.load("http://a/v1", "m") == "dropped"


async def test_workers_share_verdicts_and_do_without_while_redis_is_away(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        spool = Spool(tmp_path / "spool", "d", "w")
        runtime = Runtime(owner="w", ledger=ledger, backend=cast(Any, None), spool=spool)
        try:
            shared = SharedProbes(runtime)
            await shared.save("http://a/v1", "m", "honoured", 60)
            assert await SharedProbes(runtime).load("http://a/v1", "m") == "honoured"
            redis_server.kill9()
            assert await shared.load("http://a/v1", "m") is None
            await shared.save("http://a/v1", "m", "dropped", 60)
        finally:
            runtime.executor.shutdown()
            spool.close()
