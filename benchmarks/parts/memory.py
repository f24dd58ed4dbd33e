"""A thousand jobs that wait for a model in one worker: memory, threads, idle CPU.

Tasks in our pool that sleep, with the openai package imported. Nothing is called and no sandbox is
opened.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measuring import Cases, Part, Turn, metered
from benchmarks.parts.queues import celery_left
from benchmarks.processes import QUIET, ROOT, process, redis_server, until

COUNT = 1000
IDLE_S = 5.0


def waiting(count: int) -> Turn:
    """What a worker takes while so many jobs sleep."""
    from benchmarks.pool import app, sleep

    with redis_server() as server:
        url = f"redis+socket://{server.path}"
        with app.connection_for_write(url) as broker, app.amqp.Producer(broker) as producer:
            for _ in range(count):
                sleep.apply_async((3600,), producer=producer)
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.pool", "worker"]
        command += ["-c", str(count), "-l", "error", "--without-gossip", "--without-mingle"]
        settings = {"BENCHMARK_BROKER": url, "HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "0"}
        environment = {**os.environ, **settings}
        with process(
            [*command, "--include", "openai"], cwd=ROOT, env=environment, stdout=QUIET, stderr=QUIET
        ) as worker:
            until(lambda: not celery_left(server.client), worker)
            time.sleep(2)  # its threads come to rest
            with metered(worker=worker.pid) as meter:
                time.sleep(IDLE_S)
            lines = Path(f"/proc/{worker.pid}/smaps_rollup").read_text().splitlines()[1:]
            threads = len(list(Path(f"/proc/{worker.pid}/task").iterdir()))
    kilobytes = {name: int(size) for name, size, *_ in map(str.split, lines)}
    facts = {
        "jobs": count,
        "rss_mb": kilobytes["Rss:"] / 1024,
        "pss_mb": kilobytes["Pss:"] / 1024,
        "threads": threads,
        "idle_cpu_percent": 100 * meter.cpu_s["worker"] / IDLE_S,
    }
    return Turn(0, meter.wall_s, meter.cpu_s["worker"], facts, meter.busy_elsewhere)


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One case."""
    yield {"sleeping jobs": {"ours": partial(waiting, max(10, int(COUNT * scale)))}}


PART = Part("job", cases, rounds=1)
