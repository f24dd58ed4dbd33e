"""Every service of docker-compose.yml that is ours, as a process, with its own command line.

`make test-compose`. Addresses and directories of the containers are replaced, nothing else.
Prometheus is Debian's. Not started is Grafana: Debian has none; `make test-prometheus` asks what
its dashboards ask.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from compose_file import ROOT, Service, environment_file, load
from guarded_redis import free_port
from redis_server import redis_binary_of
from worker_process import wait_until

PORTS = ("6379", "5555", "8000", "9900", "9808", "9809", "9810", "9090")
GRACE_S = 120


class Stack:
    """All services on loopback."""

    def __init__(self, directory: Path) -> None:
        self.variables = environment_file()
        self.directory = directory
        self.ports = {port: str(free_port()) for port in PORTS}
        self.moves = {
            "0.0.0.0": "127.0.0.1",
            "@redis:6379": f"@127.0.0.1:{self.ports['6379']}",
            "http://atropos:8000": f"http://127.0.0.1:{self.ports['8000']}",
            "/etc/hermes-queue": str(ROOT / "deploy/redis"),
            "/data/out": str(directory / "datasets"),
            "/data": str(directory / "redis"),
            "/var/lib/flower": str(directory / "flower"),
            "/etc/prometheus": str(directory / "etc-prometheus"),
            "=/prometheus": f"={directory}/prometheus",
            **{port: moved for port, moved in self.ports.items()},
        }
        for name in ("datasets", "redis", "flower"):
            (directory / name).mkdir()
        self.file = load(self.variables)
        self.services: dict[str, Service] = {}

    def start(self, name: str, **more: str) -> Service:
        service = Service(self.file["services"][name], self.moves)
        if name == "prometheus":
            service.command.insert(0, "prometheus")  # its image's entry point
        own = {
            "TMPDIR": str(self.directory),
            "HERMES_QUEUE_PATHS_SPOOL": str(self.directory / f"spool-{name}"),
            "HERMES_QUEUE_ARCHIVE_DIRECTORY": str(self.directory / "archive"),
        }
        number = len(list(self.directory.glob(f"{name}-*.log")))
        self.services[name] = service
        return service.start(self.directory / f"{name}-{number}.log", **own, **more)

    def configure_prometheus(self) -> None:
        """deploy/prometheus.yml with the services' names and ports as they are here."""
        directory = self.directory / "etc-prometheus"
        directory.mkdir()
        shutil.copy(ROOT / "deploy/prometheus-rules.yml", directory)
        text = (ROOT / "deploy/prometheus.yml").read_text().replace("15s", "1s")
        for name in ("exporter", "sink", "flower"):
            text = re.sub(
                rf"\b{name}:(\d+)", lambda match: f"127.0.0.1:{self.ports[match[1]]}", text
            )
        (directory / "prometheus.yml").write_text(text)

    def get(self, port: str, path: str, user: str = "") -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}")
        if user:
            request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def wait_for(self, name: str, text: str) -> None:
        service = self.services[name]

        def said() -> bool:
            assert service.process
            assert service.process.poll() is None, service.log
            return text in service.log

        wait_until(f"{name} says {text!r}", said)

    def close(self) -> None:
        for service in reversed(self.services.values()):
            if service.process and service.process.poll() is None:
                service.stop(GRACE_S)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("stack"))
    try:
        made.start("redis", PATH=f"{Path(redis_binary_of('redis-7')).parent}:/usr/bin:/bin")
        made.wait_for("redis", "Ready to accept connections")
        yield made
    finally:
        made.close()


def command(stack: Stack, name: str, *instead: str) -> subprocess.CompletedProcess[str]:
    """`docker compose run NAME`, with another command if one is given."""
    service = Service(stack.file["services"][name], stack.moves)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        list(instead) or service.command,
        env={**os.environ, **service.environment, "PATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )


def lock_of(stack: Stack) -> int:
    password = stack.variables["REDIS_OPERATOR_PASSWORD"]
    url = f"redis://operator:{password}@127.0.0.1:{stack.ports['6379']}/0"
    with redis.Redis.from_url(url) as client:
        return int(client.exists("hq:sink:atropos"))


def read_by_prometheus(stack: Stack) -> list[str]:
    """The addresses that Prometheus reads without error."""
    text = stack.get("9090", "/api/v1/targets")[1] or '{"data": {"activeTargets": []}}'
    targets = json.loads(text)["data"]["activeTargets"]
    return [each["scrapeUrl"] for each in targets if each["health"] == "up"]


def rows(stack: Stack) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    shards = sorted((stack.directory / "datasets").rglob("*.parquet"))
    return [row for shard in shards for row in pq.read_table(shard).to_pylist()]


def test_docker_compose_accepts_the_file(stack):
    found = [["docker", "compose"], ["docker-compose"]]
    works = [words for words in found if shutil.which(words[0]) and answers([*words, "version"])]
    assert works, "no docker compose; on Debian: apt-get install docker-compose"
    lines = [f"{name}={value}\n" for name, value in stack.variables.items()]
    (stack.directory / "env").write_text("".join(lines))
    profiles = [f"--profile={name}" for name in ("metrics", "tools", "atropos", "localmodal")]
    done = subprocess.run(
        [*works[0], "--env-file", stack.directory / "env", *profiles, "config"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load(done.stdout)["services"]
    for name, service in stack.file["services"].items():
        assert resolved[name].get("command") == service.get("command")
        kept = {k: v for k, v in service.get("environment", {}).items() if v is not None}
        shown = resolved[name].get("environment") or {}
        assert {k: v for k, v in shown.items() if k in kept} == kept


def answers(words: list[str]) -> bool:
    return subprocess.run(words, capture_output=True).returncode == 0


def test_the_servers_own_check_of_its_health_passes(stack):
    test = stack.file["services"]["redis"]["healthcheck"]["test"][1]
    port = stack.ports["6379"]
    env = {**stack.variables, "PATH": "/usr/bin:/bin"}
    checked = test.replace("redis-cli", f"redis-cli -p {port}")
    assert subprocess.run(["sh", "-c", checked], env=env, check=False).returncode == 0
    broken = {**env, "REDIS_MONITOR_PASSWORD": "wrong"}
    assert subprocess.run(["sh", "-c", checked], env=broken, check=False).returncode != 0


def test_jobs_flow_from_the_producer_through_two_workers_to_the_sink_and_flower_shows_them(stack):
    first = stack.start("worker")
    stack.wait_for("worker", " ready.")
    stack.services["first-worker"] = first
    # In containers of their own they need not share one host's ports.
    stack.start("worker", HERMES_QUEUE_METRICS_WORKER_PORT=str(free_port()))
    stack.wait_for("worker", " ready.")
    stack.start("flower")
    wait_until("flower answers", lambda: stack.get("5555", "/healthcheck")[0] == 200)
    stack.start("sink")
    stack.start("exporter")
    stack.configure_prometheus()
    stack.start("prometheus")

    sent = command(stack, "producer")
    assert sent.returncode == 0, sent.stderr
    shown = command(stack, "cli")
    assert shown.returncode == 0, shown.stderr
    wait_until("the run is done", lambda: " done" in command(stack, "cli").stdout, timeout_s=150)

    assert stack.get("5555", "/tasks")[0] == 401
    assert stack.get("5555", "/api/tasks", "admin:wrong")[0] == 401
    user = stack.variables["FLOWER_BASIC_AUTH"]
    status, tasks = stack.get("5555", "/api/tasks", user)
    assert status == 200
    assert tasks.count("SUCCESS") >= 2, tasks

    wait_until("Prometheus has read all five", lambda: len(read_by_prometheus(stack)) == 5)
    query = "/api/v1/query?query=hermes_queue_trajectories_total"
    wait_until("and knows what was scored", lambda: '"scored"' in stack.get("9090", query)[1])
    assert stack.services.pop("prometheus").stop(30) == 0
    assert stack.services.pop("exporter").stop(30) == 0

    assert stack.services["sink"].stop(60) == 0, stack.services["sink"].log
    assert [row["score"] for row in rows(stack)] == [1.0, 1.0]
    for name in ("worker", "first-worker"):
        assert stack.services.pop(name).stop(GRACE_S) == 0
    assert stack.services.pop("flower").stop(30) in (0, -15)
    assert (stack.directory / "flower").iterdir()


def test_the_atropos_profile_starts_its_server_and_the_sink_registers_there(stack):
    stack.start("atropos")
    wait_until("atropos answers", lambda: stack.get("8000", "/")[0] == 200)
    stack.start("atropos-sink")
    sink = stack.services["atropos-sink"]
    wait_until("it has its lock", lambda: lock_of(stack) == 1)
    assert sink.process
    assert sink.process.poll() is None, sink.log
    assert sink.stop(60) == 0, sink.log


def test_the_localmodal_profile_runs_jobs_in_sandboxes_of_the_modal_sdk(stack):
    stack.start("localmodal")
    stack.wait_for("localmodal", "MODAL_SERVER_URL")
    stack.start("worker-localmodal")
    stack.wait_for("worker-localmodal", " ready.")
    flags = ("--items", "1", "--run-id", "by-modal", "--quiet")
    sent = command(stack, "producer", "python", "-m", "producers.gsm8k", *flags)
    assert sent.returncode == 0, sent.stderr
    wait_until(
        "it is scored",
        lambda: (
            '"finished": 1' in command(stack, "cli", "hermes-queue", "status", "by-modal").stdout
        ),
    )
    assert stack.services["worker-localmodal"].stop(GRACE_S) == 0
    assert stack.services["localmodal"].stop(30) == 0
