"""The command, the probes and the drain of a worker's pod, on a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest
from kubernetes_files import built, container, environment
from ports import free_port
from records import make_job
from redis_server import RedisServer, redis_binary_of
from scrape import fetch
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
POD = "worker-train-0"


@pytest.fixture
def redis_server(tmp_path):
    server = RedisServer(redis_binary_of("redis-7"), tmp_path / "redis", tcp=True)
    server.start()
    yield server
    server.close()


@pytest.fixture
def pod(redis_server, tmp_path):
    """The worker of the manifest, with a port and directories of this machine."""
    found = container(built("local-slots"), "worker-train")
    port = free_port()
    env = {name: value for name, value in environment(found).items() if value is not None}
    ours = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HERMES_QUEUE_REDIS_URL": redis_server.url,
        "HERMES_QUEUE_METRICS_WORKER_PORT": str(port),
        "HERMES_QUEUE_METRICS_ADDRESS": "127.0.0.1",
        "HERMES_QUEUE_PATHS_SPOOL": str(tmp_path / "spool"),
        "HERMES_QUEUE_ARCHIVE_ENABLED": "false",
        "HERMES_QUEUE_WORKER_CONCURRENCY": "2",
        "HERMES_QUEUE_LEASE_DURATION_S": "10",
        "HERMES_QUEUE_LEASE_RENEW_S": "2",
        "HOSTNAME": POD,
    }
    variables = {**os.environ, **env, **ours}
    command = [part.replace("%h", POD) for part in found["command"]]
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=variables, stdout=out, stderr=out)

    def probe(kind):
        asked = found[f"{kind}Probe"]["httpGet"]
        try:
            fetch(f"http://127.0.0.1:{port}{asked['path']}")
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        except (urllib.error.URLError, OSError):
            return False
        return True

    def stop():
        hook = found["lifecycle"]["preStop"]["exec"]["command"]
        return subprocess.run(hook, env=variables, capture_output=True, text=True)

    yield process, probe, stop, log
    if process.poll() is None:
        process.kill()
        process.wait()


def test_probes_and_drain_of_a_worker(pod, redis_server):
    process, probe, stop, log = pod
    wait_until(f"it starts: {log.read_text()}", lambda: probe("startup"))
    wait_until("it is ready", lambda: probe("readiness"))
    ledger = Ledger.connect(url=redis_server.url)
    agent = {"kind": "slow", "params": {"seconds": 25.0, "turns": 1}}
    enqueue([make_job("run", f"i{n}", item=ROW, agent=agent) for n in range(4)], ledger=ledger)
    wait_until("two run", lambda: ledger.run_status("run").running == 2)
    stopped = stop()
    assert stopped.returncode == 0, stopped.stderr
    wait_until("it takes no more", lambda: not probe("readiness"))
    assert probe("liveness")
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 0, log.read_text()
    status = ledger.run_status("run")
    assert (status.finished, status.running) == (2, 0)
    ledger.close()
