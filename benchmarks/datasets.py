"""`python -m benchmarks.datasets`: what it costs to turn the stream into Parquet.

Groups of 8 trajectories of 8,192 tokens (35 % sampled) and 20 KB of conversation are published to
a private redis-server with AOF, then consumed into a `ParquetSink` as `hermes-queue sink parquet`
does it. The same groups are also only consumed, and only written, to tell the parts apart.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.jobs import jobs
from benchmarks.private_redis import private_redis
from hermes_queue import Message, ScoredTrajectory, TokenSequence, TrajectoryJob
from hermes_queue.bodies.codec import encode_record
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import identity
from hermes_queue.results.consume import reading
from hermes_queue.sinks.datasets.parquet import ParquetSink
from hermes_queue.sinks.feed import Fed, feed
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.sinks.selection import Filters, Selection
from hermes_queue.telemetry.meter import Meter

GROUP_SIZE = 8
TOKENS = 8192


def record(job: TrajectoryJob) -> ScoredTrajectory:
    """A trajectory of 8,192 tokens in alternating spans."""
    dice = random.Random(job.trajectory_id)
    words = " ".join(f"{dice.randrange(10**6):x}" for _ in range(3400))
    mask = tuple(int(position % 1000 >= 650) for position in range(TOKENS))
    return ScoredTrajectory(
        **identity(job),
        attempt=1,
        epoch=1,
        status="completed",
        stop_reason="submitted",
        score=float(job.sample_index % 2),
        messages=(Message(role="user", content="x"), Message(role="assistant", content=words)),
        sequences=(
            TokenSequence(
                ids=tuple(dice.randrange(150_000) for _ in mask),
                loss_mask=mask,
                logprobs=tuple(-dice.random() if trained else 0.0 for trained in mask),
            ),
        ),
    )


def publish(url: str, groups: int) -> list[list[ScoredTrajectory]]:
    """Put the groups into the stream; returns them."""
    ledger = Ledger.connect(url=url)
    made = list(jobs(groups * GROUP_SIZE, group_size=GROUP_SIZE, env="bench", item={"x": 1}))
    enqueue(made, ledger=ledger)
    records = [record(job) for job in made]
    for item in records:
        ledger.begin(item.trajectory_id, 1, owner="b", lease_s=600, nonce=item.trajectory_id)
        ledger.publish(item, encode_record(item), owner="b", finished_ttl_s=3600)
    ledger.close()
    return [records[i : i + GROUP_SIZE] for i in range(0, len(records), GROUP_SIZE)]


async def consume_only(url: str) -> None:
    """Read and acknowledge."""
    async with reading("only", url=url, idle_timeout_s=0.01) as deliveries:
        async for group in deliveries:
            await group.ack()


def into_parquet(url: str, folder: Path) -> Callable[[], Awaitable[None]]:
    """What the command does."""

    async def work() -> None:
        async def done() -> bool:
            return True

        with ParquetSink(folder) as sink:
            source = reading("parquet", url=url, idle_timeout_s=0.01)
            chosen, meter = Selection(Filters(), sink.held), SinkMeter("parquet", Meter())
            await feed(
                sink,
                chosen,
                source,
                Fed(),
                meter,
                done=done,
                stop=lambda: False,
            )

    return work


def timed(name: str, groups: int, work: Callable[[], object]) -> None:
    """Run `work`, print what it took of wall and processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{name:<24} {groups / wall:>7.1f} groups/s  {1000 * cpu / groups:>7.1f} ms CPU per group",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets", description=__doc__)
    parser.add_argument("--groups", type=int, default=200)
    groups = parser.parse_args().groups
    with private_redis() as url, tempfile.TemporaryDirectory() as scratch:
        records = publish(url, groups)
        size = len(encode_record(records[0][0]))
        print(f"{groups} groups of {GROUP_SIZE} x {TOKENS} tokens, {size:,} bytes a body")
        timed("consume", groups, lambda: asyncio.run(consume_only(url)))

        def write() -> None:
            with ParquetSink(Path(scratch) / "written") as sink:
                for group in records:
                    sink.write(group)

        timed("write, one by one", groups, write)
        folder = Path(scratch) / "consumed"
        timed("consume into Parquet", groups, lambda: asyncio.run(_run(into_parquet(url, folder))))
        shards = sum(path.stat().st_size for path in folder.glob("*.parquet"))
        print(f"Parquet: {shards / groups / 1e6:.2f} MB per group")


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


if __name__ == "__main__":
    main()
