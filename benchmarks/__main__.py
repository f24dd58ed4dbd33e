"""`make bench`: what the queue itself costs, on a private redis-server with AOF.

    python -m benchmarks [--jobs N] [--bodies N]

Nothing runs in a sandbox here. Figures depend on the machine and on what else it does, so
compare only runs made side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Iterator

import redis

from benchmarks.jobs import jobs
from benchmarks.private_redis import private_redis
from hermes_queue import Message, ScoredTrajectory, TokenSequence, TrajectoryJob, consume
from hermes_queue.bodies.codec import decode_record, encode_record
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import identity

GROUP_SIZE = 8
LEASE_S = 600.0


def rows(count: int) -> Iterator[TrajectoryJob]:
    """Jobs of groups of eight, with rows of 1 KB."""
    item = {"problem_statement": "something is wrong with it " * 38}
    return jobs(count, group_size=GROUP_SIZE, env="swe_smith", item=item)


def record(job: TrajectoryJob) -> ScoredTrajectory:
    """A trajectory of about 100 KB as JSON: 30 KB of text and 3,000 tokens, most sampled."""
    dice = random.Random(job.trajectory_id)
    words = " ".join(f"{dice.randrange(10**6):x}" for _ in range(5000))
    ids = tuple(dice.randrange(150_000) for _ in range(3000))
    logprobs = tuple(-dice.random() for _ in ids)
    return ScoredTrajectory(
        **identity(job),
        attempt=1,
        epoch=1,
        status="completed",
        stop_reason="submitted",
        score=float(job.sample_index % 2),
        messages=(Message(role="assistant", content=words),),
        sequences=(TokenSequence(ids=ids, loss_mask=(1,) * len(ids), logprobs=logprobs),),
    )


def timed(name: str, count: int, work: Callable[[], object]) -> None:
    """Run `work`, print its rate."""
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    print(f"{name:<44} {count / seconds:>9,.0f} /s   {seconds:>7.2f} s for {count:,}", flush=True)


async def read_all(url: str, groups: int) -> None:
    """Consume and acknowledge `groups` groups."""
    async for group in consume("bench", url=url):
        await group.ack()
        groups -= 1
        if not groups:
            return


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--bodies", type=int, default=2_000)
    arguments = parser.parse_args()
    bodies = arguments.bodies - arguments.bodies % GROUP_SIZE
    records = [record(job) for job in rows(bodies)]
    encoded = [encode_record(item) for item in records]
    size, packed = len(records[0].model_dump_json()), len(encoded[0])
    print(f"a record: {size:,} bytes as JSON, {packed:,} encoded")
    timed("encode", bodies, lambda: [encode_record(item) for item in records])
    timed("decode", bodies, lambda: [decode_record(body) for body in encoded])
    with private_redis() as url, redis.Redis.from_url(url) as client:
        ledger = Ledger.connect(url=url)
        timed("enqueue", arguments.jobs, lambda: enqueue(rows(arguments.jobs), ledger=ledger))
        print(f"Redis holds {client.info('memory')['used_memory'] / 1e6:,.0f} MB")
        ids = [job.trajectory_id for job in rows(bodies)]
        timed(
            "begin",
            bodies,
            lambda: [
                ledger.begin(name, 1, owner="bench", lease_s=LEASE_S, nonce=name) for name in ids
            ],
        )
        timed(
            "publish",
            bodies,
            lambda: [
                ledger.publish(item, body, owner="bench", finished_ttl_s=3600)
                for item, body in zip(records, encoded, strict=True)
            ],
        )
        timed("consume", bodies, lambda: asyncio.run(read_all(url, bodies // GROUP_SIZE)))
        ledger.close()


if __name__ == "__main__":
    main()
