"""Consume → Atropos: groups of eight trajectories of 8,192 tokens to the real API server.

    python -m benchmarks.atropos [--groups N] [--batch SEQUENCES] [--settle S ...]

The server and a trainer that takes every batch at once are processes of their own; CPU time is
told apart for them. Random ids and logprobs compress worse than real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.jobs import jobs
from benchmarks.private_redis import private_redis
from hermes_queue import Message, ScoredTrajectory, TokenSequence, TrajectoryJob
from hermes_queue.bodies.codec import encode_record
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import identity
from hermes_queue.sinks.atropos.options import AtroposOptions
from hermes_queue.sinks.atropos.sink import AtroposSink

SIZE, TOKENS = 8, 8192
TRAINER = Path(__file__).parents[1] / "tests" / "support" / "atropos_trainer.py"


def record(job: TrajectoryJob) -> ScoredTrajectory:
    """8,192 tokens, of which every third run of 200 was sampled."""
    dice = random.Random(job.trajectory_id)
    mask = tuple(int(n // 200 % 3 == 2) for n in range(TOKENS))
    sequence = TokenSequence(
        ids=tuple(dice.randrange(150_000) for _ in mask),
        loss_mask=mask,
        logprobs=tuple(-dice.random() if m else 0.0 for m in mask),
    )
    return ScoredTrajectory(
        **identity(job),
        attempt=1,
        epoch=1,
        status="completed",
        stop_reason="submitted",
        score=float(job.sample_index % 2),
        messages=(Message(role="assistant", content="done"),),
        sequences=(sequence,),
    )


def fill(url: str, groups: int) -> None:
    """Publish the groups."""
    ledger = Ledger.connect(url=url)
    made = list(jobs(groups * SIZE, group_size=SIZE, env="gsm8k", item={"question": "1+1"}))
    enqueue(made, ledger=ledger, config={})
    for job in made:
        ledger.begin(job.trajectory_id, 1, owner="bench", lease_s=600, nonce=job.trajectory_id)
        one = record(job)
        ledger.publish(one, encode_record(one), owner="bench", finished_ttl_s=600)
    ledger.close()


async def serve(redis_url: str, url: str, settle_s: float, groups: int) -> tuple[float, float]:
    """Send all groups; seconds of wall and of our own CPU time."""
    sink = AtroposSink(AtroposOptions(url=url, redis_url=redis_url, settle_s=settle_s))
    wall, cpu = time.perf_counter(), time.process_time()
    running = asyncio.create_task(sink.run())
    while sink.counts.acknowledged < groups and not running.done():
        await asyncio.wait({running}, timeout=0.05)
    spent = time.perf_counter() - wall, time.process_time() - cpu
    sink.stop()
    await running
    return spent


def started(command: list[str]) -> subprocess.Popen[bytes]:
    """Run it without its words."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet)


def ended(process: subprocess.Popen[bytes]) -> float:
    """Kill it; the CPU seconds that it used."""
    process.kill()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime


def wait_for(url: str) -> None:
    """Until the trainer has registered."""
    while True:
        try:
            with urllib.request.urlopen(f"{url}/info") as answer:
                if json.load(answer)["batch_size"] > 0:
                    return
        except OSError:
            pass
        time.sleep(0.1)


def measure(groups: int, batch: int, settle_s: float) -> None:
    """One run, printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    with private_redis() as redis_url, tempfile.TemporaryDirectory() as folder:
        fill(redis_url, groups)
        api = [sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1"]
        trainer = [sys.executable, str(TRAINER), url, f"{folder}/log", "--step-s", "0"]
        server_process = started([*api, "--port", port])
        trainer_process = started([*trainer, "--batch-size", str(batch)])
        try:
            wait_for(url)
            wall, cpu = asyncio.run(serve(redis_url, url, settle_s, groups))
        finally:
            trainer_cpu, server_cpu = ended(trainer_process), ended(server_process)
    print(
        f"batches of {batch:>4} sequences, --settle {settle_s:g}: {groups / wall:5.2f} groups/s; "
        f"CPU per group: ours {1000 * cpu / groups:.0f} ms, server "
        f"{1000 * server_cpu / groups:.0f} ms, trainer {1000 * trainer_cpu / groups:.0f} ms",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.atropos", description=__doc__)
    parser.add_argument("--groups", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--settle", type=float, nargs="*", default=[0.0, 2.0])
    arguments = parser.parse_args()
    for settle_s in arguments.settle:
        measure(arguments.groups, arguments.batch, settle_s)


if __name__ == "__main__":
    main()
