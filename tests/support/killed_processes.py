"""Processes that a proof kills and starts again, and the groups that go through them."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

SIZE = 8


class Processes:
    """Processes by name, that can be killed and started again."""

    def __init__(
        self, log: Path, commands: dict[str, list[str]], environment: dict[str, str]
    ) -> None:
        self.log = log
        self.commands = commands
        self.environment = {**os.environ, **environment}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: list[tuple[float, str]] = []

    def start(self, who: str) -> None:
        with self.log.open("ab") as log:
            self.running[who] = subprocess.Popen(
                self.commands[who], env=self.environment, stdout=log, stderr=log
            )

    def kill(self, who: str) -> int:
        """Kill it with SIGKILL; its process id."""
        process = self.running.pop(who)
        assert process.poll() is None, f"{who} had ended: {self.log.read_text()[-2000:]}"
        process.kill()
        process.wait()
        self.kills.append((time.time(), who))
        return process.pid

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def put(ledger, name: str) -> list[str]:
    jobs = [make_job(instance=name, sample=n, size=SIZE) for n in range(SIZE)]
    enqueue(ledger, *jobs)
    for job in jobs:
        publish(ledger, make_record(job, 0.5, epoch=begin(ledger, job).epoch))
    return [job.trajectory_id for job in jobs]


@contextmanager
def waiting(what: str, cast: Processes, timeout_s: float = 300.0):
    deadline = time.monotonic() + timeout_s

    def more() -> None:
        assert time.monotonic() < deadline, f"{what}: {cast.log.read_text()[-3000:]}"
        time.sleep(0.05)

    yield more
