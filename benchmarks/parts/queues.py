"""No-op tasks: our pool of coroutines beside Celery's prefork, dramatiq and taskiq.

Each queue is filled, then one worker command empties it, with its own defaults on this machine:
ours one process with 64 slots (with Celery's events, as in production, and without), Celery a
process for each processor, dramatiq the same with eight threads in each, taskiq two processes on a
stream with acknowledgements. No results are kept. redis-server with AOF for all. CPU time is that
of the workers and of Redis, from the moment when a tenth of the tasks is done; enqueueing is not
counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis

from benchmarks.measuring import Cases, Part, Side, Turn, metered
from benchmarks.processes import PEERS, QUIET, ROOT, peer_python, process, redis_server, until

COUNT = 3000
QUIET_CELERY = ("-l", "error", "--without-gossip", "--without-mingle")
OURS = ("-m", "celery", "-A", "benchmarks.pool", "worker", "-c", "64", *QUIET_CELERY)


def celery_left(client: redis.Redis) -> int:
    """Messages that wait or are not acknowledged."""
    return int(client.llen("celery")) + int(client.hlen("unacked"))


def dramatiq_left(client: redis.Redis) -> int:
    """Dramatiq keeps a message in this hash until it is acknowledged."""
    return int(client.hlen("dramatiq:default.msgs"))


def taskiq_left(client: redis.Redis) -> int:
    """Entries of the stream that were not read, or not acknowledged."""
    [group] = client.xinfo_groups("taskiq")
    read = int(group["entries-read"] or 0)
    return int(client.xlen("taskiq")) - read + int(group["pending"])


@dataclass(frozen=True)
class Queue:
    """A system, and how its worker is started and watched."""

    enqueue: tuple[str, ...]
    work: tuple[str, ...]
    left: Callable[[redis.Redis], int]
    scheme: str = "unix"
    folder: Path = PEERS


FILL = "import sys; from benchmarks.pool import app, noop\nwith app.producer_pool.acquire() as p:\n"
FILL += "    for _ in range(int(sys.argv[1])): noop.apply_async(producer=p)"
POOL = Queue(("-c", FILL), OURS, celery_left, "redis+socket", ROOT)
PREFORK = ("-m", "celery", "-A", "celery_tasks", "worker", *QUIET_CELERY)
PEER_QUEUES = {
    "celery prefork": Queue(("celery_tasks.py",), PREFORK, celery_left, "redis+socket"),
    "dramatiq": Queue(("dramatiq_tasks.py",), ("-m", "dramatiq", "dramatiq_tasks"), dramatiq_left),
    "taskiq": Queue(
        ("taskiq_tasks.py",),
        ("-m", "taskiq", "worker", "--log-level", "ERROR", "taskiq_tasks:broker"),
        taskiq_left,
    ),
}


def run(python: str | Path, queue: Queue, count: int) -> Turn:
    """Fill the queue, then let one worker empty it."""
    with redis_server() as server:
        url = f"{queue.scheme}://{server.path}"
        paths = {"BENCHMARK_BROKER": url, "PYTHONPATH": str(queue.folder)}
        settings = {**os.environ, **paths, "HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "0"}
        options = {"cwd": queue.folder, "env": settings, "stdout": QUIET, "stderr": QUIET}
        subprocess.run([python, *queue.enqueue, str(count)], check=True, **options)  # type: ignore[call-overload]
        # taskiq's worker takes a minute to end, and nothing is measured by then.
        with process([python, *queue.work], patience_s=5.0, **options) as worker:
            until(lambda: queue.left(server.client) <= 0.9 * count, worker)
            before = queue.left(server.client)
            with metered(worker=worker.pid, redis=server.pid) as meter:
                until(lambda: not queue.left(server.client), worker)
    return meter.turn(before, of=("worker", "redis"))


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One case."""
    count = max(200, int(COUNT * scale))
    with_events = Queue(POOL.enqueue, (*OURS, "-E"), celery_left, POOL.scheme, ROOT)
    sides: dict[str, Side | str] = {
        "ours": partial(run, sys.executable, with_events, count),
        "ours, events off": partial(run, sys.executable, POOL, count),
    }
    python = peer_python("queues")
    for name, queue in PEER_QUEUES.items():
        sides[name] = python if isinstance(python, str) else partial(run, python, queue, count)
    yield {"no-op tasks": sides}


PART = Part("task", cases)
