"""The project's own image, and `docker compose up`, for real: `make test-image`.

The images are built on a base of Debian's packages, so no registry is needed, and run on a dockerd
of this test's own, without firewall rules: containers reach each other, and nothing outside.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compose_file import ROOT
from container_engines import base_tarball, docker_engine, engine_directory
from debian_tools import COMPOSE, command_of

from hermes_queue.settings import PathSettings

pytestmark = pytest.mark.timeout(1200)

BASE = "hermes-queue-base"
COUNT_ROWS = """
import pyarrow.parquet as p, glob
rows = [r for f in glob.glob("/data/out/all/**/*.parquet", recursive=True)
        for r in p.read_table(f, columns=["trajectory_id", "score"]).to_pylist()]
print(len(rows), len({r["trajectory_id"] for r in rows}), {r["score"] for r in rows})
"""
TOUCH_ELSEWHERE = """
for place in / /opt /var/lib/hermes-queue /var/lib/hermes-queue/archive /home/hermes; do
    ! touch $place/x || exit 9
done
"""
START_TIMEOUT_S = 240
RUN_TIMEOUT_S = 120


class Engine:
    """dockerd, with a command line and Compose."""

    def __init__(self, socket: Path, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            **os.environ,
            "DOCKER_HOST": f"unix://{socket}",
            "DOCKER_BUILDKIT": "0",  # the classic builder, which needs no image of its own
            "COMPOSE_PROJECT_NAME": "hermes-queue-test",
            "BASE_IMAGE": BASE,
            "REDIS_IMAGE": "hermes-queue-redis",
        }
        self._compose = command_of(COMPOSE)

    def variable(self, name: str) -> str:
        """What make-env.sh has chosen."""
        lines = (self.directory / ".env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[name]

    def docker(self, *arguments: str, data: bytes | None = None) -> str:
        return self._checked(["docker", *arguments], data)

    def compose(self, *arguments: str) -> str:
        file = ["--env-file", str(self.directory / ".env"), "-f", str(ROOT / "docker-compose.yml")]
        return self._checked([*self._compose, *file, *arguments])

    def build(self, dockerfile: str, tag: str, context: Path, *arguments: str) -> None:
        what = ["--file", str(ROOT / "deploy" / dockerfile), "--tag", tag, str(context)]
        self.docker("build", "--network", "host", "--quiet", *arguments, *what)

    def left(self) -> list[str]:
        """Containers, volumes, and networks that are not dockerd's own."""
        found = [self.docker("ps", "--all", "--quiet"), self.docker("volume", "ls", "--quiet")]
        networks = self.docker("network", "ls", "--format", "{{.Name}}").split()
        return [*" ".join(found).split(), *sorted({*networks} - {"bridge", "host", "none"})]

    def _checked(self, command: list[str], data: bytes | None = None) -> str:
        done = subprocess.run(
            command, env=self.environment, input=data, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()[-3000:]}"
        return (done.stderr if command[1] == "logs" else done.stdout).decode()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("engine")
    with engine_directory() as state, docker_engine(state) as running:
        engine = Engine(running.socket, directory)
        subprocess.run(
            ["sh", str(ROOT / "deploy/make-env.sh"), str(directory / ".env")], check=True
        )
        _make_images(engine)
        yield engine


def _make_images(engine: Engine) -> None:
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    engine.docker(
        "import",
        "--change",
        f"ENV {path}",
        str(base_tarball(PathSettings().cache)),
        f"{BASE}-plain",
    )
    # The certificates of this machine, which packages are fetched with.
    context = engine.directory / "base"
    context.mkdir()
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    shutil.copy(certificates, context)
    (context / "Dockerfile").write_text(
        f"FROM {BASE}-plain\nCOPY {certificates.name} {certificates}\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends python3-venv\n"
    )
    engine.docker("build", "--network", "host", "--quiet", "--tag", BASE, str(context))
    base = ("--build-arg", f"BASE={BASE}")
    engine.build("redis.Dockerfile", "hermes-queue-redis", context, *base)
    engine.build("Dockerfile", "hermes-queue", ROOT, *base)


def test_compose_brings_up_a_factory_that_runs_twenty_trajectories_and_leaves_nothing(
    engine: Engine,
) -> None:
    up = ("--detach", "--no-build", "--wait", "--wait-timeout", str(START_TIMEOUT_S))
    try:
        engine.compose("up", *up, "--scale", "worker=2")
        assert _health(engine) == ["flower", "redis", "sink", "worker", "worker"]
        run = ("python", "-m", "producers.gsm8k", "--items", "10", "--group-size", "2")
        engine.compose("run", "--rm", "-T", "producer", *run, "--run-id", "twenty")
        assert _finished(engine, "twenty") == 20
        assert all(": score 1.0" in log for log in _logs(engine, "worker"))
        engine.compose("stop", "sink")
        rows = engine.compose("run", "--rm", "-T", "sink", "python3", "-c", COUNT_ROWS)
        assert rows.strip() == "20 20 {1.0}"
        _prove_the_viewer(engine, up)
    finally:
        engine.compose("--profile", "*", "down", "--volumes", "--timeout", "30")
    assert engine.left() == []


def _prove_the_viewer(engine: Engine, up: tuple[str, ...]) -> None:
    """It shows all twenty to whoever has the token, and a label outlives its container."""
    view = ("--profile", "view")
    engine.compose(*view, "up", *up, "view")
    assert engine.compose(*view, "exec", "-T", "view", "id", "-u").strip() == "10001"
    engine.compose(*view, "exec", "-T", "view", "sh", "-c", TOUCH_ELSEWHERE)
    assert engine.variable("HERMES_QUEUE_VIEW_TOKEN") not in engine.compose(*view, "logs", "view")
    assert _viewed(engine, "/api/trajectories", token="wrong")[0] == 401
    ends = time.monotonic() + RUN_TIMEOUT_S
    while len(rows := _viewed(engine, "/api/trajectories")[1]["rows"]) < 20:
        assert time.monotonic() < ends, rows
        time.sleep(1)
    name = rows[0]["id"]
    assert _viewed(engine, f"/api/t/{name}/messages")[1]["messages"]
    given = {"trajectory_id": name, "label": "fine"}
    assert _viewed(engine, "/api/reviews", label=given)[0] == 200
    engine.compose(*view, "rm", "--stop", "--force", "view")
    engine.compose(*view, "up", *up, "view")
    found = _viewed(engine, "/api/trajectories?q=reviewed:fine")[1]["rows"]
    assert [row["id"] for row in found] == [name]


def _viewed(
    engine: Engine, path: str, token: str = "", label: dict[str, str] | None = None
) -> tuple[int, Any]:
    """The viewer's answer, as a browser on this host would ask through the published port.

    This dockerd publishes none, so its address on a bridge is asked, under the name of that port.
    """
    container = engine.compose("--profile", "view", "ps", "--quiet", "view").strip()
    shown = json.loads(engine.docker("inspect", container))[0]["NetworkSettings"]["Networks"]
    [address] = {each["IPAddress"] for name, each in shown.items() if name.endswith("_outside")}
    request = urllib.request.Request(f"http://{address}:9820{path}")
    request.add_header("Host", "127.0.0.1:9820")
    token = token or engine.variable("HERMES_QUEUE_VIEW_TOKEN")
    request.add_header("Authorization", f"Bearer {token}")
    if label is not None:
        request.data = json.dumps(label).encode()
        request.add_header("Content-Type", "application/json")
        request.add_header("X-HQ-Request", "1")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None


def _finished(engine: Engine, run_id: str) -> int:
    """How many trajectories of the run finished, once all have ended."""
    ends = time.monotonic() + RUN_TIMEOUT_S
    while True:
        shown = json.loads(
            engine.compose(
                "run", "--rm", "-T", "cli", "hermes-queue", "run", "show", run_id, "--json"
            )
        )
        if shown["state"] == "done" or time.monotonic() > ends:
            return int(shown["finished"])


def _health(engine: Engine) -> list[str]:
    """The services of healthy containers, one for each."""
    found: list[dict[str, Any]] = [
        json.loads(line) for line in engine.compose("ps", "--format", "json").splitlines()
    ]
    return sorted(each["Service"] for each in found if each["Health"] == "healthy")


def _logs(engine: Engine, service: str) -> list[str]:
    """What each container of the service has logged, on stderr."""
    names = engine.compose("ps", "--quiet", service).split()
    return [engine.docker("logs", name) for name in names]
