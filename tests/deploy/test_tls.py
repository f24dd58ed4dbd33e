"""`rediss://` with a private CA: everybody who talks to Redis checks the server's certificate."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import make_certificates
from guarded_redis import GuardedRedis
from zygote import run_forked

from hermes_queue.cli.exporter import Exporter
from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.telemetry import metrics


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def guarded(
    certificates: Path, tmp_path_factory: pytest.TempPathFactory, redis_7: str
) -> Iterator[GuardedRedis]:
    server = GuardedRedis(tmp_path_factory.mktemp("redis"), redis_7, tls=certificates)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.mark.fleet
def test_worker_producer_consumer_and_commands_speak_tls(guarded, worker, as_role, tmp_path):
    sent = as_role("producer", "producers.gsm8k", "--items", "2", "--run-id", "tls")
    assert sent.returncode == 0, sent.stderr
    out = tmp_path / "out.jsonl"
    sink = ("sink", "jsonl", "--out", str(out), "--run", "tls", "--until-done", "--quiet")
    consumed = as_role("consumer", "hermes-queue", *sink)
    assert consumed.returncode == 0, consumed.stderr
    assert [json.loads(line)["score"] for line in out.read_text().splitlines()] == [1.0, 1.0]
    shown = as_role("monitor", "hermes-queue", "run", "list")
    assert "tls" in shown.stdout, shown.stderr
    ledger = Ledger.connect(url=guarded.url("monitor"))
    assert dict(Exporter(ledger, lanes=(), scan_s=0.0).values())[metrics.WORKERS] == {(): 1}
    ledger.close()


def test_a_server_that_another_ca_vouches_for_is_refused(guarded, certificates):
    url = guarded.url("monitor").replace("ca.pem", "other.pem")
    with pytest.raises(RedisUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        Ledger.connect(url=url)


def test_a_producer_refuses_it_too_and_sends_nothing(guarded, certificates):
    url = guarded.url("producer").replace("ca.pem", "other.pem")
    done = run_forked(
        "producers.gsm8k",
        *("--items", "1", "--run-id", "refused"),
        environment={**os.environ, "HERMES_QUEUE_REDIS_URL": url},
    )
    assert done.returncode == 4
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_a_client_without_tls_gets_nowhere(guarded):
    url = guarded.url("monitor").replace("rediss://", "redis://").partition("?")[0]
    with pytest.raises(RedisUnavailable):
        Ledger.connect(url=url)
