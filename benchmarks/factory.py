"""What the queue itself costs: enqueue, run no-op trajectories, publish, consume.

    python -m benchmarks.factory

Everything is real (redis-server with AOF, a worker process, events on) but the sandbox,
which does nothing, and the agent, which is `nop`. Prints rates and CPU seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

import hermes_queue
from benchmarks.jobs import RUN, jobs
from benchmarks.private_redis import private_redis
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import SandboxError
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec
from hermes_queue.sandbox.base import (
    AssetSpec,
    Capabilities,
    ExecutionRequest,
    ExecutionResult,
    SandboxInfo,
    Slot,
    SlotSpec,
)

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


class NoopBackend:
    """A sandbox without a sandbox: every command succeeds and says nothing."""

    capabilities = Capabilities(isolation=False)
    free_slots = 1 << 20

    def __init__(self, **_: object) -> None:
        self._leases = 0

    def resize(self, slots: int) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def prepare(self, spec: SlotSpec) -> None: ...

    async def read_asset(self, asset: AssetSpec, path: str, *, max_bytes: int = 0) -> bytes:
        raise FileNotFoundError(path)

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        self._leases += 1
        return Slot(f"noop-{self._leases}", trajectory_id, "noop", "/workspace", spec)

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        return [ExecutionResult(0, b"", b"", 0.0) for _ in requests]

    async def read_file(self, slot: Slot, path: str, *, max_bytes: int = 0) -> bytes:
        raise FileNotFoundError(path)

    async def write_file(self, slot: Slot, path: str, data: bytes) -> None: ...

    async def renew(self, slot: Slot) -> Slot:
        return slot

    async def release(self, slot: Slot) -> None: ...

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        return []

    async def terminate(self, sandbox_id: str) -> None: ...


async def drain(url: str, groups: int) -> None:
    seen = 0
    async for group in hermes_queue.consume("bench", url=url):
        await group.ack()
        seen += 1
        if seen == groups:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=64)
    arguments = parser.parse_args()
    with private_redis() as url, tempfile.TemporaryDirectory(prefix="hq-bench-") as spool:
        measure(url, spool, arguments)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    milliseconds = 1e3 * (used.ru_utime + used.ru_stime) / arguments.count
    print(f"worker and Redis: {milliseconds:.2f} ms CPU per trajectory, start-up included")


def measure(url: str, spool: str, arguments: argparse.Namespace) -> None:
    ledger = Ledger.connect(url=url)
    began, cpu = time.perf_counter(), time.process_time()
    nop = AgentSpec(kind="nop")
    enqueue(
        jobs(arguments.count, group_size=arguments.group_size, env="gsm8k", item=ROW, agent=nop),
        ledger=ledger,
    )
    spent = time.perf_counter() - began
    print(
        f"enqueue: {arguments.count / spent:.0f} jobs/s, "
        f"{1e6 * (time.process_time() - cpu) / arguments.count:.0f} us CPU each, "
        f"{ledger.client.info('memory')['used_memory'] / arguments.count:.0f} bytes of Redis each"
    )
    environment = {
        **os.environ,
        "HERMES_QUEUE_REDIS_URL": url,
        "HERMES_QUEUE_SANDBOX_BACKEND": "benchmarks.factory:NoopBackend",
        "HERMES_QUEUE_PATHS_SPOOL": spool,
    }
    command = [sys.executable, "-m", "celery", "-A", "hermes_queue", "worker", "-l", "warning"]
    command += ["-c", str(arguments.concurrency), "--without-gossip", "--without-mingle"]
    worker = subprocess.Popen(command, env=environment)
    try:
        while not ledger.client.exists("hq:results"):
            time.sleep(0.01)
        began = time.perf_counter()
        done = ledger.run_status(RUN).finished
        asyncio.run(drain(url, arguments.count // arguments.group_size))
        spent = time.perf_counter() - began
        print(f"queue -> worker -> publish -> consumed: {(arguments.count - done) / spent:.0f}/s")
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
