"""A real `celery -A hermes_queue worker` that tests may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from zygote import ForkedProcess, zygote

from hermes_queue.ledger import Ledger

T = TypeVar("T")
_READ_AT_START = frozenset({"LD_PRELOAD", "PYTHONWARNINGS", "PYTHONSTARTUP", "PYTHONDEVMODE"})
"""Variables that a process which runs already does not look at."""

SHORT_LEASE = {
    "HERMES_QUEUE_LEASE_DURATION_S": "4",
    "HERMES_QUEUE_LEASE_RENEW_S": "1",
    "HERMES_QUEUE_LEASE_SWEEP_S": "0.5",
    "HERMES_QUEUE_LEASE_MOVER_S": "0.2",
}


def wait_until(what: str, probe: Callable[[], T], *, timeout_s: float = 100.0) -> T:
    """Poll `probe` until it returns something true, and return that."""
    give_up = time.monotonic() + timeout_s
    while True:
        if found := probe():
            return found
        if time.monotonic() > give_up:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain: {what}")
        time.sleep(0.05)


class WorkerProcess:
    """One worker on one Redis, with a short lease and its log in a file.

    Args:
        redis_url: which Redis.
        directory: where its log and its spool lie.
        concurrency: trajectories at once.
        prefix: a command in front, e.g. one that changes the user.
        forked: start it by a fork that has imported Celery and us; False = by the command
            `celery -A hermes_queue worker`, from nothing.
        arguments: more of Celery's flags.
        environment: its settings.
    """

    def __init__(
        self,
        redis_url: str,
        directory: Path,
        *,
        concurrency: int = 4,
        prefix: Sequence[str] = (),
        forked: bool = True,
        arguments: Sequence[str] = (),
        **environment: str,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.redis_url = redis_url
        self.log_path = directory / f"worker-{len(list(directory.glob('worker-*.log')))}.log"
        self._environment = {
            **os.environ,
            **SHORT_LEASE,
            "HERMES_QUEUE_REDIS_URL": redis_url,
            # Endpoints of tests listen wherever there is room, often after the worker has started.
            "HERMES_QUEUE_MODEL_OTHER_URLS": "without_key",
            "HERMES_QUEUE_PATHS_SPOOL": str(directory / "spool"),
            "HERMES_QUEUE_ARCHIVE_DIRECTORY": str(directory / "archive"),
            **environment,
        }
        self._forked = forked and not prefix and _READ_AT_START.isdisjoint(environment)
        self._prefix = [*prefix, sys.executable, "-m", "celery"]
        self._arguments = ["-A", "hermes_queue", "worker", "-c", str(concurrency), "-l", "info"]
        self._arguments += ["--without-gossip", "--without-mingle"]
        self._arguments += ["-n", f"{self.log_path.stem}-{os.getpid()}@%h", *arguments]
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def launch(self) -> subprocess.Popen[bytes] | ForkedProcess:
        """Start it and wait for nothing."""
        with self.log_path.open("wb") as log:
            if self._forked:
                self.process = zygote().start("celery", self._arguments, self._environment, log)
            else:
                command = [*self._prefix, *self._arguments]
                self.process = subprocess.Popen(
                    command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
                )
        return self.process

    def start(self) -> WorkerProcess:
        """Start it and wait until it is registered."""
        pid = self.launch().pid
        ledger = Ledger.connect(url=self.redis_url)
        try:
            wait_until(
                f"worker ready; log:\n{self.log()}",
                lambda: not self.alive or any(w["pid"] == pid for w in ledger.workers()),
            )
        finally:
            ledger.close()
        assert self.alive, self.log()
        return self

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_for_log(self, text: str, times: int = 1) -> None:
        """Wait until it has said `text` so often; what the ledger shows may come first."""
        wait_until(f"{times} x {text!r}", lambda: self.log().count(text) >= times)

    def kill9(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def terminate(self, timeout_s: float = 60.0) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.alive:
            assert self.process
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill9()


@contextmanager
def closing_workers(
    redis_url: str, directory: Path, **defaults: Any
) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers with `defaults` and what else it is given; all are closed at the end."""
    workers: list[WorkerProcess] = []

    def start(**options: Any) -> WorkerProcess:
        worker = WorkerProcess(redis_url, directory, **{**defaults, **options})
        workers.append(worker)
        return worker.start()

    try:
        yield start
    finally:
        for worker in workers:
            worker.close()
