"""`make test-engine-kill`: 200 trajectories of Harbor tasks, and dockerd killed among them.

Real: redis-server, `celery -A hermes_queue worker`, `python -m producers.harbor`, dockerd. Each of
the bundled tasks is solved by its own solution, so that every score other than 1 is the kill's
doing. Not used are tasks whose images need packages from the network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from container_engines import BASE, EngineProcess
from redis_server import RedisServer
from worker_process import WorkerProcess, wait_until

from hermes_queue.bodies import codec
from hermes_queue.ledger import DeadLetters, Ledger
from hermes_queue.models import ScoredTrajectory

RUN = "killed-engine"
TRAJECTORIES = int(os.environ.get("TRAJECTORIES", "200"))
CONCURRENCY = 6
KILL_AFTER = TRAJECTORIES * 3 // 10
AWAY_S = 5.0
ORPHANS_GONE_S = 180.0
BUNDLED = Path(__file__).parents[4] / "hermes_plugins" / "harbor" / "data"
NEED_NETWORK = ("c-makefile", "pip-package", "uv-grader")
TIMEOUT_S = 3000.0

pytestmark = pytest.mark.timeout(TIMEOUT_S + 300)


@pytest.fixture(params=["docker"])
def kind(request: pytest.FixtureRequest) -> str:
    """The engine that is killed."""
    return str(request.param)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """The tasks that need nothing but their base image."""
    folder = tmp_path / "tasks"
    shutil.copytree(BUNDLED, folder, ignore=shutil.ignore_patterns(*NEED_NETWORK))
    return folder


@pytest.fixture
def worker(
    redis_server: RedisServer, tmp_path: Path, environment: Mapping[str, str]
) -> Iterator[WorkerProcess]:
    """A worker whose slots are containers of the engine."""
    settings = {
        "HERMES_QUEUE_SANDBOX_BACKEND": "docker",
        "HERMES_QUEUE_DOCKER_REAP_S": "30",
        "HERMES_QUEUE_IMAGES_BASE_IMAGES": json.dumps({"python:3.11-slim-bookworm": BASE}),
    }
    found = WorkerProcess(
        redis_server.url, tmp_path / "worker", concurrency=CONCURRENCY, forked=False, **settings
    )
    yield found.start()
    found.close()


def containers(engine: EngineProcess, *more: str) -> list[str]:
    """Ids of the engine's containers."""
    command = ["docker", "--host", engine.address, "ps", "--quiet", "--no-trunc", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


def produce(url: str, dataset: Path) -> None:
    """Enqueue everything."""
    flags = ["--dataset", str(dataset), "--items", str(TRAJECTORIES), "--cycle", "--run-id", RUN]
    subprocess.run(
        [sys.executable, "-m", "producers.harbor", *flags, "--agent", "oracle", "--quiet"],
        env={**os.environ, "HERMES_QUEUE_REDIS_URL": url},
        check=True,
    )


def published(ledger: Ledger) -> list[ScoredTrajectory]:
    """All records in the stream, repetitions included."""
    client: Any = ledger.client
    return [
        codec.decode_record(client.get(ledger.key(f"body:{name}")))
        for _, fields in client.xrange(ledger.key("results"))
        for name in json.loads(fields[b"members"])
    ]


def test_nothing_is_lost_or_misjudged_when_the_engine_is_killed(
    redis_server: RedisServer, dataset: Path, worker: WorkerProcess, engine: EngineProcess
) -> None:
    if not engine.argv:
        pytest.skip("the engine is not ours to kill")
    ledger = Ledger.connect(url=redis_server.url)
    began = time.monotonic()
    produce(redis_server.url, dataset)
    enqueued = ledger.run_status(RUN)
    wait_until(
        f"{KILL_AFTER} trajectories are published",
        lambda: ledger.run_status(RUN).finished >= KILL_AFTER or not worker.alive,
        timeout_s=TIMEOUT_S,
    )
    struck, running = containers(engine), ledger.run_status(RUN).running
    engine.kill()
    killed = time.monotonic()
    time.sleep(AWAY_S)
    engine.start()
    back = time.monotonic()
    wait_until(
        "all trajectories are published",
        lambda: ledger.run_status(RUN).done or not worker.alive,
        timeout_s=TIMEOUT_S,
    )
    done = time.monotonic()
    wait_until(
        "no container is left", lambda: not containers(engine, "--all"), timeout_s=ORPHANS_GONE_S
    )
    gone = time.monotonic()
    assert worker.alive, worker.log()[-3000:]
    records = published(ledger)
    repeated = [record for record in records if record.attempt > 1]
    causes = Counter(
        f"{earlier.failure.cause}: {earlier.failure.type}"
        for record in repeated
        for earlier in record.attempts
        if earlier.failure
    )
    print(
        f"\n{len(records)} trajectories, {CONCURRENCY} at once: {done - began:.0f} s\n"
        f"killed at {killed - began:.0f} s with {len(struck)} containers and {running} "
        f"trajectories running, back after {back - killed:.1f} s\n"
        f"scores: {dict(Counter(record.score for record in records))}\n"
        f"repeated: {len(repeated)}, because of {dict(causes)}\n"
        f"last container gone {gone - done:.1f} s after the last result"
    )
    assert len({record.trajectory_id for record in records}) == len(records) == TRAJECTORIES
    assert enqueued.total == TRAJECTORIES
    wrong = [(r.instance_id, r.score, r.report, r.failure) for r in records if r.score != 1.0]
    assert not wrong, wrong[:3]
    assert struck, "nothing ran when the engine was killed"
    assert repeated, "the kill struck no trajectory"
    assert not list(DeadLetters(ledger).find())
    ledger.close()
