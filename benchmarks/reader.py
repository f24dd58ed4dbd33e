"""A consumer in a process of its own: `python -m benchmarks.reader GROUP` until it is ended."""

from __future__ import annotations

import asyncio
import sys

from hermes_queue import consume


async def read(group: str) -> None:
    """Groups are decoded and validated, as a trainer's are."""
    async for delivered in consume(group):
        await delivered.ack()


if __name__ == "__main__":
    asyncio.run(read(sys.argv[1]))
