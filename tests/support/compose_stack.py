"""The services of docker-compose.yml on loopback, without Docker."""

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
from pathlib import Path
from typing import Any

from compose_file import ROOT, Service, environment_file, load
from ports import free_port
from worker_process import wait_until

PORTS = ("6379", "5555", "8000", "9900", "9808", "9809", "9810", "9820", "9090")
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
            "/data/reviews": str(directory / "reviews"),
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
            **(
                {"HERMES_QUEUE_PATHS_CACHE": str(self.directory / "index")}
                if name == "view"
                else {}
            ),
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

        def printed() -> bool:
            assert service.process
            assert service.process.poll() is None, service.log
            return text in service.log

        wait_until(f"{name} says {text!r}", printed)

    def close(self) -> None:
        for service in reversed(self.services.values()):
            if service.process and service.process.poll() is None:
                service.stop(GRACE_S)

    def start_factory(self) -> None:
        """Two workers, Flower, the sink, the exporter and Prometheus."""
        first = self.start("worker")
        self.wait_for("worker", " ready.")
        self.services["first-worker"] = first
        # In containers of their own they need not share one host's ports.
        self.start("worker", HERMES_QUEUE_METRICS_WORKER_PORT=str(free_port()))
        self.wait_for("worker", " ready.")
        self.start("flower")
        wait_until("flower answers", lambda: self.get("5555", "/healthcheck")[0] == 200)
        self.start("sink")
        self.start("exporter")
        self.configure_prometheus()
        self.start("prometheus")

    def run(self, name: str, *instead: str, **more: str) -> subprocess.CompletedProcess[str]:
        """`docker compose run NAME`, with another command if one is given."""
        service = Service(self.file["services"][name], self.moves)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            list(instead) or service.command,
            env={**os.environ, **service.environment, "PATH": path, **more},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=180,
        )

    def read_by_prometheus(self) -> list[str]:
        """The addresses that Prometheus reads without error."""
        text = self.get("9090", "/api/v1/targets")[1] or '{"data": {"activeTargets": []}}'
        targets = json.loads(text)["data"]["activeTargets"]
        return [each["scrapeUrl"] for each in targets if each["health"] == "up"]

    def rows(self) -> list[dict[str, Any]]:
        """The rows that the sink has written."""
        import pyarrow.parquet as pq

        shards = sorted((self.directory / "datasets").rglob("*.parquet"))
        return [row for shard in shards for row in pq.read_table(shard).to_pylist()]
