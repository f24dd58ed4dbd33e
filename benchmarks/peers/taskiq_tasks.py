"""taskiq: `python taskiq_tasks.py COUNT` enqueues, `taskiq worker taskiq_tasks:broker` works."""

# mypy: ignore-errors

import asyncio
import os
import sys

from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=os.environ["BENCHMARK_BROKER"], consumer_id="0")


@broker.task
async def noop() -> None:
    """Nothing."""


async def enqueue(count: int) -> None:
    await broker.startup()
    for _ in range(count):
        await noop.kiq()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(enqueue(int(sys.argv[1])))
