"""A real `celery worker` on a real Redis, with what Flower would see of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from redis_server import RedisServer
from zygote import ForkedProcess, zygote

ROOT = Path(__file__).parents[2]
IMPORTS = ("celery.bin.celery", "hermes_queue.broker.pool")
"""Not what runs trajectories: that hooks itself into the pool."""


def eventually(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """The first true value of `condition`; an AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value


class CeleryWorker:
    """One worker of `tests/support/pool_jobs.py`; `marks` are the lines its jobs left."""

    def __init__(self, server: RedisServer, directory: Path, concurrency: int = 4) -> None:
        self.server = server
        self.directory = directory
        self.concurrency = concurrency
        self.app = Celery("pool_jobs_client", broker=server.broker_url)
        self.app.conf.update(task_ignore_result=True, broker_connection_retry=False)
        self.events: list[dict[str, Any]] = []
        self.process: ForkedProcess | None = None
        self._listening = threading.Event()
        self._closing = False
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def start(self, **environment: str) -> CeleryWorker:
        """Start listening and the worker; returns when it is ready to take messages."""
        self.launch(**environment)
        self._listener.start()
        eventually(self._listening.is_set)
        eventually(lambda: " ready." in self.log)
        return self

    def launch(self, **environment: str) -> None:
        """Start the worker and wait for nothing."""
        self.directory.mkdir(parents=True, exist_ok=True)
        env = os.environ | {
            "POOL_JOBS_BROKER": self.server.broker_url,
            "POOL_JOBS_MARKS": str(self.directory / "marks"),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}",
            "COVERAGE_PROCESS_START": "",
        }
        arguments = ["-A", "pool_jobs", "worker", "-c", str(self.concurrency), "-l", "info"]
        arguments += ["--without-gossip", "--without-mingle"]
        with (self.directory / "log").open("wb") as log:
            self.process = zygote(*IMPORTS).start(
                "celery", arguments, env | environment, log, self.directory
            )

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    @property
    def marks(self) -> list[list[str]]:
        path = self.directory / "marks"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def marked(self, *words: str) -> bool:
        """Whether a line begins with `words`."""
        return any(line[: len(words)] == list(words) for line in self.marks)

    def send(self, name: str, *args: Any, **options: Any) -> str:
        """Send a task; returns its id."""
        return str(self.app.send_task(name, args, **options).id)

    def events_of(self, task_id: str) -> list[str]:
        """The types of events of a task in order, without the `task-` before each."""
        events = [e for e in self.events if e.get("uuid") == task_id]
        return [str(e["type"]).removeprefix("task-") for e in events]

    def event(self, task_id: str, kind: str) -> dict[str, Any]:
        """Wait for an event of a task."""
        found: dict[str, Any] = eventually(
            lambda: next(
                (
                    e
                    for e in tuple(self.events)
                    if e.get("uuid") == task_id and e["type"] == f"task-{kind}"
                ),
                None,
            )
        )
        return found

    def stats(self) -> dict[str, Any]:
        """The pool's part of `celery inspect stats`."""
        inspect = self.app.control.inspect(timeout=10.0, limit=1)  # ends with the answer
        replies = eventually(inspect.stats)
        [stats] = replies.values()
        pool: dict[str, Any] = stats["pool"]
        return pool

    def go(self, gate: str = "go") -> None:
        """Let the jobs that wait for it acknowledge their messages, or end."""
        (self.directory / gate).touch()

    def unacknowledged(self) -> int:
        with self.server.client() as client:
            return int(client.hlen("unacked"))

    def queued(self) -> int:
        with self.server.client() as client:
            return int(client.llen("celery"))

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 60.0) -> int:
        """The exit code."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """Kill what still runs."""
        self._closing = True
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._listener.is_alive():
            self._listener.join(10)
        self.app.close()

    def _listen(self) -> None:
        while not self._closing:
            try:
                with self.app.connection_for_read() as connection:
                    receiver = self.app.events.Receiver(
                        connection, handlers={"*": self.events.append}
                    )
                    with receiver.consumer_context(wakeup=False) as (subscribed, _, _):
                        self._drain(subscribed)
            except Exception:  # noqa: BLE001 - Redis was killed; listen again when it is back
                time.sleep(0.1)

    def _drain(self, connection: Any) -> None:
        while not self._closing:
            try:
                connection.drain_events(timeout=0.2)
            except TimeoutError:
                self._listening.set()


@contextmanager
def running_worker(
    server: RedisServer, directory: Path, concurrency: int = 4, **environment: str
) -> Iterator[CeleryWorker]:
    """A started worker that is gone afterwards."""
    worker = CeleryWorker(server, directory, concurrency)
    try:
        yield worker.start(**environment)
    finally:
        worker.close()
