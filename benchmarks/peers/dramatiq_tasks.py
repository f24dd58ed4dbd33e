"""dramatiq: `python dramatiq_tasks.py COUNT` enqueues, `dramatiq dramatiq_tasks` works."""

# mypy: ignore-errors

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["BENCHMARK_BROKER"]))


@dramatiq.actor
def noop() -> None:
    """Nothing."""


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        noop.send()
