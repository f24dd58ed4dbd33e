"""What the coroutine pool costs: no-op tasks per second, memory of 1,000 running jobs.

    python -m benchmarks.pool [--tasks 5000] [--jobs 1000]

Starts a redis-server (AOF everysec) and workers of its own. CPU time is the worker's and
says more than rates do on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from celery import Celery

from hermes_queue.broker.pool import current_task

ROOT = Path(__file__).parents[1]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

app = Celery("benchmark", broker=os.environ.get("BENCHMARK_BROKER"))
app.conf.update(
    worker_pool="hermes_queue.broker.pool:TaskPool",
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)


@app.task(name="noop")
async def noop() -> None:
    """Nothing but what every job of ours does first."""
    await current_task().acknowledge()


@app.task(name="sleep")
async def sleep(seconds: float) -> None:
    """A job that waits for a model."""
    await current_task().acknowledge()
    await asyncio.sleep(seconds)


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mb(pid: int) -> dict[str, float]:
    """RSS and PSS of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(kb) for name, kb, *_ in (line.split() for line in lines)}
    return {"RSS": sizes["Rss:"] / 1024, "PSS": sizes["Pss:"] / 1024}


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until `condition` holds."""
    while not condition():
        time.sleep(0.01)


@contextmanager
def redis_server(directory: Path) -> Iterator[redis.Redis]:
    """A client of a private redis-server."""
    path = directory / "redis.sock"
    command = [shutil.which("redis-server") or "redis-server", "--port", "0"]
    command += ["--unixsocket", str(path), "--dir", str(directory), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "everysec"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(path.exists)
        app.conf.broker_url = os.environ["BENCHMARK_BROKER"] = f"redis+socket://{path}"
        yield redis.Redis(unix_socket_path=str(path))
    finally:
        process.terminate()
        process.wait()


@contextmanager
def worker(concurrency: int, *flags: str) -> Iterator[int]:
    """A worker's pid."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.pool", "worker"]
    command += ["-c", str(concurrency), "-l", "warning", "--without-gossip", "--without-mingle"]
    process = subprocess.Popen(
        [*command, *flags],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "0"},
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def measure_rate(client: redis.Redis, tasks: int, *flags: str) -> None:
    """Print how fast a full queue is emptied."""
    with app.producer_pool.acquire() as producer:
        for _ in range(tasks):
            noop.apply_async(producer=producer)
    with worker(64, *flags) as pid:
        wait_for(lambda: client.llen("celery") < tasks)
        began, cpu, waiting = time.monotonic(), cpu_s(pid), client.llen("celery")
        wait_for(lambda: client.llen("celery") + client.hlen("unacked") == 0)
        rate = waiting / (time.monotonic() - began)
        cpu_ms = (cpu_s(pid) - cpu) / waiting * 1000
    events = "on " if "-E" in flags else "off"
    print(f"no-op tasks, events {events}: {rate:6.0f}/s, {cpu_ms:.2f} ms CPU of the worker each")


def measure_memory(client: redis.Redis, jobs: int) -> None:
    """Print what a worker takes while `jobs` jobs run."""
    with app.producer_pool.acquire() as producer:
        for _ in range(jobs):
            sleep.apply_async((3600,), producer=producer)
    with worker(jobs, "--include", "openai") as pid:
        wait_for(lambda: client.exists("celery") == 0 and client.hlen("unacked") == 0)
        time.sleep(2)
        cpu = cpu_s(pid)
        time.sleep(10)
        idle = (cpu_s(pid) - cpu) / 10 * 100
        sizes = ", ".join(f"{name} {mb:.0f} MB" for name, mb in memory_mb(pid).items())
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        print(
            f"{jobs} sleeping jobs: {sizes}, {threads} threads, {idle:.1f} % CPU, openai imported"
        )


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=1000)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hq-bench-"))
    try:
        with redis_server(directory) as client:
            measure_rate(client, arguments.tasks)
            measure_rate(client, arguments.tasks, "-E")
            measure_memory(client, arguments.jobs)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
