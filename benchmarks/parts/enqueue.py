"""Real rows into the queue: `python -m producers.swe_smith --cycle`, beside bare redis-py.

The producer is a process of its own and does everything: reads and validates the bundled rows,
makes ids and groups of four, claims jobs in the ledger, sends Celery's messages. It runs twice,
with few and with many jobs, and the difference is counted, so that its start is not. Bare
redis-py pushes 1 kB a job onto a list, 500 in a pipeline.

A mix of one source does the same beside the producer: the same rows, groups and
jobs, drawn from its copy on disk and written down batch by batch before they are enqueued.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measuring import Cases, Meter, Part, Turn, metered
from benchmarks.processes import Server, redis_server

COUNT = 8000
FEW = 80
GROUP_SIZE = 4
BATCH = 500
MIX = """\
name = "bench{count}"
backlog = {{ low = 9999998, high = 9999999 }}
[sources.rows]
producer = "swe_smith"
sampler = "in_order"
quota.items = {items}
flags = {{ group_size = {size} }}
"""


def produce(server: Server, count: int) -> Meter:
    """Enqueue so many jobs."""
    command = [sys.executable, "-m", "producers.swe_smith", "--cycle", "--run-id", f"bench{count}"]
    command += ["--items", str(count // GROUP_SIZE), "--group-size", str(GROUP_SIZE)]
    environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": server.url}
    with metered(redis=server.pid) as meter:
        subprocess.run(command, check=True, env=environment, capture_output=True)
    return meter


def mixed(server: Server, count: int) -> Meter:
    """Enqueue as many through a mix."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "mix.toml")
        file.write_text(MIX.format(count=count, items=count // GROUP_SIZE, size=GROUP_SIZE))
        command = [sys.executable, "-m", "hermes_queue.cli", "mix", str(file)]
        environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": server.url}
        with metered(redis=server.pid) as meter:
            subprocess.run(command, check=True, env=environment, capture_output=True)
    return meter


def ours(count: int, produce: Callable[[Server, int], Meter] = produce) -> Turn:
    """The producer, or a mix, without its start."""
    with redis_server() as server:
        few = produce(server, FEW)
        memory = server.number("memory", "used_memory")
        many = produce(server, count)
        per_job = (server.number("memory", "used_memory") - memory) / count
    more = count - FEW
    many.wall_s -= few.wall_s
    many.cpu_s = {name: used - few.cpu_s[name] for name, used in many.cpu_s.items()}
    return many.turn(more, facts={"start_s": few.wall_s, "redis_bytes_per_job": per_job})


def bare(count: int) -> Turn:
    """Pipelines of LPUSH."""
    with redis_server() as server, metered(redis=server.pid) as meter:
        for _ in range(count // BATCH):
            with server.client.pipeline(transaction=False) as pipe:
                for _ in range(BATCH):
                    pipe.lpush("queue", bytes(1000))
                pipe.execute()
    return meter.turn(count // BATCH * BATCH)


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """Each turn has a redis-server of its own."""
    count = max(2 * BATCH, int(COUNT * scale) // GROUP_SIZE * GROUP_SIZE)
    yield {
        "jobs of real rows": {"bare redis-py": partial(bare, count), "ours": partial(ours, count)},
        "the same through a mix": {
            "the producer": partial(ours, count),
            "ours, as a mix": partial(ours, count, mixed),
        },
    }


PART = Part("job", cases)
