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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compose_file import ROOT
from compose_plugin import compose_command
from container_engines import base_tarball, docker_engine, engine_directory

from hermes_queue.settings import PathSettings

pytestmark = pytest.mark.timeout(1200)

BASE = "hermes-queue-base"
COUNT_ROWS = """
import pyarrow.parquet as p, glob
rows = [r for f in glob.glob("/data/out/all/**/*.parquet", recursive=True)
        for r in p.read_table(f, columns=["trajectory_id", "score"]).to_pylist()]
print(len(rows), len({r["trajectory_id"] for r in rows}), {r["score"] for r in rows})
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
        self._compose = compose_command(directory)

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
    finally:
        engine.compose("--profile", "*", "down", "--volumes", "--timeout", "30")
    assert engine.left() == []


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
