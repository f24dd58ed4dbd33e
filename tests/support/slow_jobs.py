"""A Redis, workers and slow jobs for the tests that kill things: fixtures for a conftest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from records import make_job, published_records
from redis_server import RedisServer
from worker_process import WorkerProcess, closing_workers, wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import ScoredTrajectory, TrajectoryJob

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


@pytest.fixture
def start_worker(
    redis_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    with closing_workers(redis_server.url, tmp_path / "workers") as start:
        yield start


class Factory:
    """Slow jobs, and what becomes of them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def enqueue(self, count: int, *, seconds: float, run_id: str = "run") -> list[TrajectoryJob]:
        jobs = [
            make_job(
                run_id,
                f"i{n}",
                item=ROW,
                agent={"kind": "slow", "params": {"seconds": seconds, "turns": 1}},
            )
            for n in range(count)
        ]
        enqueue(jobs, ledger=self.ledger)
        return jobs

    def wait_running(self, count: int, run_id: str = "run") -> None:
        wait_until(f"{count} running", lambda: self.ledger.run_status(run_id).running == count)

    def wait_epoch(self, job: TrajectoryJob, epoch: int) -> None:
        key = f"hq:traj:{job.trajectory_id}"
        wait_until(
            f"epoch {epoch}", lambda: int(self.ledger.client.hget(key, "epoch") or 0) == epoch
        )

    def wait_done(self, run_id: str = "run", timeout_s: float = 90.0) -> list[ScoredTrajectory]:
        """Every record in the stream, in order of publication."""
        wait_until("run done", lambda: self.ledger.run_status(run_id).done, timeout_s=timeout_s)
        return published_records(self.ledger)


@pytest.fixture
def factory(ledger: Ledger) -> Factory:
    return Factory(ledger)
