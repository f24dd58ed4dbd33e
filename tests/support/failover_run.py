"""A run with workers and a sink on servers that fail over, and what became of its work."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from records import make_job
from redis_sentinels import RedisSentinels
from tallied_env import TALLY, measurements
from worker_process import WorkerProcess, closing_workers, wait_until
from zygote import ForkedProcess, zygote

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import Ledger

SUPPORT = str(Path(__file__).parent)
ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


@dataclass
class Outcome:
    """What a run has come to."""

    jobs: int
    measured: Counter[str]
    """Times that each trajectory was measured."""
    delivered: Counter[str]
    """Times that the sink wrote each trajectory."""

    @property
    def measured_again(self) -> int:
        return sum(times - 1 for times in self.measured.values())

    @property
    def delivered_again(self) -> int:
        return sum(times - 1 for times in self.delivered.values())


class FailoverRun:
    """Jobs, two workers, and `sink jsonl`, all on the master that the sentinels name."""

    def __init__(
        self, sentinels: RedisSentinels, directory: Path, ledger: Ledger, **environment: str
    ) -> None:
        self._directory = directory
        self.ledger = ledger
        self._tally = directory / "tally"
        self._out = directory / "out.jsonl"
        self._sentinels = sentinels
        self._jobs: list[str] = []
        self.workers: list[WorkerProcess] = []
        self._sink: ForkedProcess | None = None
        self.environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")])),
            TALLY: str(self._tally),
            "HERMES_QUEUE_LEASE_DURATION_S": "20",
            "HERMES_QUEUE_LEASE_RENEW_S": "2",
            **environment,
        }

    def start(self, stack: ExitStack, *, jobs: int, workers: int, seconds: float) -> None:
        start = stack.enter_context(
            closing_workers(
                self._sentinels.url("worker"),
                self._directory / "workers",
                concurrency=8,
                **self.environment,
            )
        )
        self.workers = [start() for _ in range(workers)]
        agent = {"kind": "slow", "params": {"seconds": seconds, "turns": 1}}
        made = [
            make_job("run", f"i{n}", item=ROW, env="tallied_env:ENV", agent=agent)
            for n in range(jobs)
        ]
        enqueue(made, ledger=self.ledger)
        self._jobs = [job.trajectory_id for job in made]
        flags = ["sink", "jsonl", "--out", str(self._out), "--run", "run", "--quiet"]
        env = os.environ | self.environment
        env["HERMES_QUEUE_REDIS_URL"] = self._sentinels.url("consumer")
        with (self._directory / "sink.log").open("wb") as log:
            self._sink = zygote().start("hermes_queue.cli", flags, env, log)
        stack.callback(self._sink.kill)

    def measured(self) -> int:
        """Trajectories that were measured so far."""
        return len(measurements(self._tally))

    def wait_for(self, count: int) -> None:
        wait_until(f"{count} are measured", lambda: self.measured() >= count)

    def end(self) -> Outcome:
        """Wait until all is done and written."""
        wait_until("the run is done", self._is_done, timeout_s=150)
        wait_until(
            f"the sink has all; {self.sink_log()}", lambda: len(self._written()) == len(self._jobs)
        )
        return Outcome(len(self._jobs), measurements(self._tally), self._written())

    def sink_log(self) -> str:
        return (self._directory / "sink.log").read_text()

    def _is_done(self) -> bool:
        try:
            return self.ledger.run_status("run").done
        except HermesQueueError:  # between two masters
            return False

    def _written(self) -> Counter[str]:
        if not self._out.exists():
            return Counter()
        lines = self._out.read_text().splitlines()
        return Counter(json.loads(line)["trajectory_id"] for line in lines)


@contextmanager
def running(
    sentinels: RedisSentinels,
    directory: Path,
    *,
    jobs: int = 160,
    workers: int = 2,
    seconds: float = 0.5,
    **environment: str,
) -> Iterator[FailoverRun]:
    """A run under way; everything that it has started is ended."""
    with ExitStack() as stack:
        ledger = Ledger.connect(url=sentinels.url("operator"))
        stack.callback(ledger.close)
        run = FailoverRun(sentinels, directory, ledger, **environment)
        run.start(stack, jobs=jobs, workers=workers, seconds=seconds)
        yield run
