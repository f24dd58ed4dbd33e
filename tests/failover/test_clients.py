"""Everybody who talks to Redis finds the master over TLS, and finds the next one."""

from __future__ import annotations

import json
import os
from contextlib import closing

import pytest
from worker_process import WorkerProcess, wait_until
from zygote import run_forked

from hermes_queue.broker.app import app, connection_settings
from hermes_queue.cli.exporter import Exporter
from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.settings import RedisSettings
from hermes_queue.telemetry import metrics


@pytest.fixture
def sentinels(start_sentinels, certificates, monkeypatch):
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    monkeypatch.setenv("HERMES_QUEUE_REDIS_TLS_CA", str(certificates / "ca.pem"))
    return start_sentinels(tls=certificates)


@pytest.fixture
def as_role(sentinels):
    def run(role, program, *rest):
        module = "hermes_queue.cli" if program == "hermes-queue" else program
        environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": sentinels.url(role)}
        done = run_forked(module, *rest, environment=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def celery_answers() -> bool:
    redis = RedisSettings()
    made = connection_settings(redis)
    options = {"transport_options": made["broker_transport_options"], "ssl": made["broker_use_ssl"]}
    with app.connection_for_write(made["broker_url"], **options) as connection:
        return bool(app.control.ping(connection=connection, timeout=5))


def test_every_client_goes_to_the_next_master(sentinels, as_role, tmp_path, monkeypatch):
    outs = {run: tmp_path / f"{run}.jsonl" for run in ("before", "after")}
    worker = WorkerProcess(sentinels.url("worker"), tmp_path / "worker")
    try:
        worker.start()
        as_role("producer", "producers.gsm8k", "--items", "2", "--run-id", "before")
        exporter_of = Ledger.connect(url=sentinels.url("monitor"))
        exporter = Exporter(exporter_of, lanes=(), scan_s=0.0)
        assert dict(exporter.values())[metrics.WORKERS] == {(): 1}
        sentinels.kill(0)
        sentinels.wait_for_another_master(0)
        as_role("producer", "producers.gsm8k", "--items", "2", "--run-id", "after")
        for run, out in outs.items():
            sink = ("sink", "jsonl", "--out", str(out), "--run", run, "--until-done", "--quiet")
            as_role("consumer", "hermes-queue", *sink)
        shown = as_role("monitor", "hermes-queue", "run", "list")
        assert "before" in shown
        assert "after" in shown
        wait_until("the worker beats", lambda: dict(exporter.values())[metrics.WORKERS] == {(): 1})
        exporter_of.close()
        monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", sentinels.url("operator"))
        wait_until("Celery's worker answers", celery_answers)
        assert worker.alive
        assert "-0123456789abcdef" not in worker.log()
    finally:
        worker.close()
    for out in outs.values():
        assert [json.loads(line)["score"] for line in out.read_text().splitlines()] == [1.0, 1.0]


def test_the_doctor_is_content(sentinels, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", sentinels.url("operator"))
    done = run_forked("hermes_queue.cli", "doctor", environment=dict(os.environ))
    assert "redis.reachable" in done.stdout
    assert "redis.sentinels" in done.stdout, done.stdout
    assert "0123456789abcdef" not in done.stdout


def test_servers_that_another_ca_vouches_for_are_refused(sentinels, certificates, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_TLS_CA", str(certificates / "other.pem"))
    with pytest.raises(RedisUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        Ledger.connect(url=sentinels.url("monitor"), timeout_s=2)


def test_a_server_whose_certificate_names_another_host_is_refused(sentinels, monkeypatch):
    url = sentinels.url("monitor").replace("127.0.0.1", "localhost")
    with pytest.raises(RedisUnavailable, match="Hostname mismatch"):
        Ledger.connect(url=url, timeout_s=2)
    monkeypatch.setenv("HERMES_QUEUE_REDIS_TLS_CHECK_HOSTNAME", "false")
    with closing(Ledger.connect(url=url, timeout_s=2)) as ledger:
        assert ledger.workers() == []


def test_a_client_without_tls_is_told_so(sentinels):
    url = sentinels.url("monitor").replace("sentinel+tls://", "sentinel://")
    with pytest.raises(RedisUnavailable, match="no sentinel knows a master of that name"):
        Ledger.connect(url=url, timeout_s=2)


def test_a_name_that_no_sentinel_knows_is_told(sentinels):
    url = sentinels.url("monitor").replace("/hq/", "/other/")
    with pytest.raises(RedisUnavailable, match="knows hq, and not 'other'"):
        Ledger.connect(url=url, timeout_s=2)
