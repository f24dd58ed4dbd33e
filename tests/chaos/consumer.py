"""A reader of the results: writes each group down, fsyncs, acknowledges."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import hermes_queue
from hermes_queue.disk.durable import append_line
from hermes_queue.errors import RedisFull, RedisUnavailable


async def read(group: str, path: str, pause_s: float) -> None:
    """Read until the process is ended."""
    async for delivered in hermes_queue.consume(group, consumer="only"):
        scores = {member.trajectory_id: member.score for member in delivered.members}
        append_line(Path(path), json.dumps({"group": delivered.group_id, "scores": scores}))
        await asyncio.sleep(pause_s)
        await delivered.ack()


def main() -> None:
    """Read; start again after an outage that the library does not wait out."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.consumer")
    parser.add_argument("--group", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each ack")
    arguments = parser.parse_args()
    while True:
        try:
            asyncio.run(read(arguments.group, arguments.file, arguments.pause))
        except (RedisFull, RedisUnavailable):
            time.sleep(0.5)


if __name__ == "__main__":
    main()
