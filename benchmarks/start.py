"""What it costs to start: imports, command lines, a worker.

    python -m benchmarks.start [--rounds N] [--worker]

Every line is a new process; its CPU (user and system) is that of the process and its children. The
lines alternate, and the smallest of all rounds counts: other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.jobs import jobs
from benchmarks.private_redis import private_redis
from hermes_queue.broker import worker
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec

BARE = "redis, and pydantic with one model"
_BARE = """
import redis.asyncio
from pydantic import BaseModel, Field, ValidationError, model_validator
class Model(BaseModel): field: int = 0
"""
_READ = """
import asyncio, contextlib, hermes_queue
async def main():
    with contextlib.suppress(hermes_queue.RedisUnavailable):
        async for group in hermes_queue.consume("bench", url="unix:///nonexistent"): pass
asyncio.run(main())
"""
_SEND = """
import contextlib, hermes_queue
with contextlib.suppress(hermes_queue.RedisUnavailable):
    hermes_queue.enqueue(env="gsm8k", items=[{"question": "1"}], url="unix:///nonexistent")
"""
PROCESSES: dict[str, Sequence[str]] = {
    "python alone": ("-c", "pass"),
    BARE: ("-c", _BARE),
    "import hermes_queue": ("-c", "import hermes_queue"),
    "from hermes_queue import consume": ("-c", "from hermes_queue import consume"),
    "from hermes_queue import enqueue": ("-c", "from hermes_queue import enqueue"),
    "hermes_queue.consume(), Redis away": ("-c", _READ),
    "hermes_queue.enqueue(), Redis away": ("-c", _SEND),
    "hermes-queue --help": ("-m", "hermes_queue.cli", "--help"),
    "hermes-queue run --help": ("-m", "hermes_queue.cli", "run", "--help"),
    "hermes-queue status --help": ("-m", "hermes_queue.cli", "status", "--help"),
    "hermes-queue sink --help": ("-m", "hermes_queue.cli", "sink", "--help"),
    "hermes-queue doctor --help": ("-m", "hermes_queue.cli", "doctor", "--help"),
    "python -m producers.swe_smith --help": ("-m", "producers.swe_smith", "--help"),
    "python -m producers.gsm8k --help": ("-m", "producers.gsm8k", "--help"),
}
"""Name -> arguments of the interpreter."""


def cpu_s(arguments: Sequence[str]) -> float:
    """Processor time of one process and its children."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return used.ru_utime + used.ru_stime


def processes(rounds: int) -> None:
    spent: dict[str, list[float]] = {name: [] for name in PROCESSES}
    for _ in range(rounds):
        for name, arguments in PROCESSES.items():
            spent[name].append(cpu_s(arguments))
    bare = min(spent[BARE])
    print(f"{'CPU seconds':<40} {'min':>6} {'median':>6} {'above bare':>10}")
    for name, seconds in spent.items():
        least = min(seconds)
        print(f"{name:<40} {least:>6.3f} {median(seconds):>6.3f} {least - bare:>+10.3f}")


def first_job() -> tuple[float, float]:
    """CPU and wall seconds from the start of a worker until its first job has ended."""
    with private_redis() as url, tempfile.TemporaryDirectory(prefix="hq-bench-") as spool:
        ledger = Ledger.connect(url=url)
        row = {"question": "How many eggs are two dozen?", "answer": "2*12=24\n#### 24"}
        nop = AgentSpec(kind="nop")
        enqueue(jobs(1, group_size=1, env="gsm8k", item=row, agent=nop), ledger=ledger)
        environment = {
            **os.environ,
            "HERMES_QUEUE_REDIS_URL": url,
            "HERMES_QUEUE_SANDBOX_BACKEND": "benchmarks.factory:NoopBackend",
            "HERMES_QUEUE_PATHS_SPOOL": spool,
        }
        began = time.perf_counter()
        process = subprocess.Popen(worker.command("bench", 4, "warning"), env=environment)
        while not ledger.client.exists("hq:results"):
            time.sleep(0.01)
        wall_s = time.perf_counter() - began
        fields = open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        process.terminate()
        process.wait()
        ledger.close()
    return used, wall_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help="a worker's first job as well")
    arguments = parser.parse_args()
    processes(arguments.rounds)
    if arguments.worker:
        used, wall = zip(*(first_job() for _ in range(arguments.rounds)), strict=True)
        print(f"worker, start to first job: {min(used):.2f} s CPU, {min(wall):.2f} s wall")


if __name__ == "__main__":
    main()
