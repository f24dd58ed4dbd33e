"""Real servers for `make test-vllm` and `make test-sglang`; no part of `make test`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from records import make_job
from redis_server import RedisServer
from worker_process import WorkerProcess, closing_workers, wait_until

from hermes_queue.bodies import codec
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import ScoredTrajectory

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from live_server import LiveServer  # noqa: E402
from trail_env import row  # noqa: E402

DONE_TIMEOUT_S = 3000.0
RESCORE_TIMEOUT_S = 1500.0
TEST_TIMEOUT_S = 900
"""The first test waits for the server too."""
NEEDED = ("--server", "--server-venv", "--model-dir", "--program-model-dir")
MODES = {
    "messages": {"token_ids": True, "parser": "hermes"},
    "tokens": {"mode": "tokens", "parser": "hermes"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--server", choices=["vllm", "sglang"], help="which one to test")
    parser.addoption("--server-venv", type=Path, help="where it is installed")
    parser.addoption("--episodes", type=int, default=100, help="of each mode and temperature")
    parser.addoption("--model-dir", type=Path, help="made by tests/live/tiny_model.py")
    parser.addoption("--program-model-dir", type=Path, help="by tests/live/program_model.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


class Live:
    """What the tests start servers with."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        if not all(map(config.getoption, NEEDED)):
            raise pytest.UsageError("needs a server: make test-vllm, or make test-sglang")
        self.kind: str = config.getoption("--server")
        self.venv = Path(config.getoption("--server-venv")).absolute()
        self.model = Path(config.getoption("--model-dir")).absolute()
        self.program_model = Path(config.getoption("--program-model-dir")).absolute()
        self.directory = directory

    def server(self, *arguments: str, model: Path | None = None, **environment: str) -> LiveServer:
        """One that is not started yet."""
        return LiveServer(
            self.kind, self.venv, model or self.model, self.directory, *arguments, **environment
        )

    def processed(self) -> LiveServer:
        """One whose logprobs are those of the distribution that is sampled from."""
        if self.kind == "vllm":
            return self.server("--logprobs-mode", "processed_logprobs")
        return self.server(SGLANG_RETURN_ORIGINAL_LOGPROB="")


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Live:
    return Live(request.config, tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def episodes(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--episodes"))


@pytest.fixture(scope="session")
def server(live: Live) -> Iterator[LiveServer]:
    """The server with logprobs of the model's own distribution."""
    running = live.server(VLLM_SERVER_DEV_MODE="1")  # its requests to pause
    try:
        yield running.start()
    finally:
        running.kill9()


class Run:
    """Jobs on a Redis and a worker of this test's own."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def enqueue(
        self, url: str, kind: str, mode: str, count: int, *, run_id: str, **sampling: Any
    ) -> None:
        """`count` trails, each one trajectory."""
        agent = {
            "kind": "openai",
            "model": "tiny",
            "base_url": url,
            "params": {"server": kind, **MODES[mode]},
            "sampling": {"max_tokens": 64, **sampling},
        }
        rows = [row(number) for number in range(count)]
        jobs = [
            make_job(
                run_id,
                each["instance_id"],
                env="trail_env:ENV",
                item=each,
                agent=agent,
                limits={"max_turns": 12, "max_format_errors": 20, "agent_timeout_s": 600},
            )
            for each in rows
        ]
        enqueue(jobs, ledger=self.ledger)

    def records(self, run_id: str) -> list[ScoredTrajectory]:
        """All records of a run, once it is done."""
        wait_until(
            f"run {run_id} done",
            lambda: self.ledger.run_status(run_id).done,
            timeout_s=DONE_TIMEOUT_S,
        )
        found = []
        for _, fields in self.ledger.client.xrange("hq:results"):
            for trajectory_id in json.loads(fields[b"members"]):
                record = codec.decode_record(self.ledger.client.get(f"hq:body:{trajectory_id}"))
                found += [record] if record.run_id == run_id else []
        return found


@pytest.fixture
def run(redis_server: RedisServer) -> Iterator[Run]:
    with redis_server.client(decode_responses=False) as client:
        yield Run(Ledger(client, prefix="hq:", url=redis_server.url))


@pytest.fixture
def start_worker(
    redis_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    defaults = {
        "PYTHONPATH": f"{HERE}:{HERE.parents[1]}",
        "HERMES_QUEUE_LEASE_DURATION_S": "40",
        "HERMES_QUEUE_LEASE_RENEW_S": "5",
    }
    with closing_workers(redis_server.url, tmp_path / "w", concurrency=8, **defaults) as start:
        yield start


@pytest.fixture
def rescored(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `hermes-queue rescore` on records."""

    def rescored(records: list[ScoredTrajectory], *flags: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "records.jsonl"
        path.write_text("".join(f"{record.model_dump_json()}\n" for record in records))
        command = [str(Path(sys.executable).with_name("hermes-queue")), "rescore", str(path)]
        return subprocess.run(
            [*command, *flags], capture_output=True, text=True, timeout=RESCORE_TIMEOUT_S
        )

    return rescored
