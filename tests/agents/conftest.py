"""Programs that nobody changed, against a scripted model: `make test-agents`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from modal_server import localmodal, localmodal_server
from records import make_job, published_records
from redis_server import RedisServer
from scripted_model import ScriptedModel, scripted_model, steps
from worker_process import WorkerProcess, closing_workers, wait_until

from hermes_queue.agent.programs.catalogue import find_program, pack
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import ScoredTrajectory

__all__ = ["localmodal", "localmodal_server"]  # fixtures that we ship

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "producers" / "data"
DONE_TIMEOUT_S = 900.0
"""The first test of a program waits for its installation."""
SUM = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DONE_TIMEOUT_S + 60))


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted_model(steps()) as running:
        yield running


@pytest.fixture
def start_worker(
    redis_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    with closing_workers(redis_server.url, tmp_path / "workers", concurrency=2) as start:
        yield start


class Run:
    """Jobs whose agent is a program, and what becomes of them."""

    def __init__(self, ledger: Ledger, url: str) -> None:
        self.ledger = ledger
        self.url = url

    def enqueue(self, program: str, *, row: dict[str, Any] | None = None, **limits: Any) -> str:
        """One trajectory by a preset, or by `FILE.toml`; returns its id."""
        packed = pack(find_program(program))
        job = make_job(
            "run",
            row["instance_id"] if row else "eggs",
            env="swe_smith" if row else "gsm8k",
            item=row or SUM,
            agent={
                "kind": "command",
                "model": "policy",
                "base_url": self.url,
                "params": {"program": packed.reference},
            },
            limits={"max_turns": 20, "agent_timeout_s": 300, **limits},
        )
        enqueue([job], ledger=self.ledger, items=packed.items)
        return job.trajectory_id

    def record(self) -> ScoredTrajectory:
        """The run's one record."""
        wait_until("run done", lambda: self.ledger.run_status("run").done, timeout_s=DONE_TIMEOUT_S)
        (record,) = published_records(self.ledger)
        return record


@pytest.fixture
def run(ledger: Ledger, model: ScriptedModel) -> Run:
    return Run(ledger, model.url)


@pytest.fixture(scope="session")
def bug() -> dict[str, Any]:
    """A bundled row whose repair is one word."""
    rows = (json.loads(line) for line in (DATA / "swe_smith.jsonl").read_text().splitlines())
    return next(row for row in rows if "python-slugify" in row["instance_id"] and _flip(row))


def _flip(row: dict[str, Any]) -> bool:
    (edit,) = row["mutation"]["files"][0]["edits"]
    return bool(edit.get("text") == "False")


@pytest.fixture(scope="session")
def repair(bug: dict[str, Any]) -> str:
    """The command that repairs it."""
    (file,) = bug["mutation"]["files"]
    start = file["edits"][0]["start"]
    code = (
        f"p = {file['file']!r}; b = open(p, 'rb').read(); "
        f"assert b[{start}:{start} + 5] == b'False'; "
        f"open(p, 'wb').write(b[:{start}] + b'True' + b[{start} + 5:])"
    )
    return f'python3 -c "{code}"'
