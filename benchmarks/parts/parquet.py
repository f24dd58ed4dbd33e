"""The stream into Parquet: groups of eight trajectories of 8,192 tokens (35 % sampled), 20 kB text.

Ours consumes into a `ParquetSink` as `hermes-queue sink parquet` does it. The other sides only
consume the same groups, and only write them. CPU time is that of this process; Redis's stands
beside it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.jobs import jobs, publish, record
from benchmarks.measuring import HERE, Cases, Part, Turn, metered
from benchmarks.processes import redis_server
from hermes_queue.ledger import Ledger
from hermes_queue.results.consume import reading
from hermes_queue.sinks.datasets.parquet import ParquetSink
from hermes_queue.sinks.feed import Fed, feed
from hermes_queue.sinks.metering import SinkMeter
from hermes_queue.sinks.selection import Filters, Selection
from hermes_queue.telemetry.meter import Meter

GROUPS = 100
SIZE, TOKENS = 8, 8192


async def consume_only(url: str, reader: str) -> None:
    """Read and acknowledge."""
    async with reading(reader, url=url, idle_timeout_s=0.01) as deliveries:
        async for group in deliveries:
            await group.ack()


async def into_parquet(url: str, reader: str, folder: Path) -> None:
    """What the command does."""

    async def done() -> bool:
        return True

    with ParquetSink(folder) as sink:
        source = reading(reader, url=url, idle_timeout_s=0.01)
        chosen, meter = Selection(Filters(), sink.held), SinkMeter("parquet", Meter())
        await feed(sink, chosen, source, Fed(), meter, done=done, stop=lambda: False)


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """All sides read the same stream, each turn under a name of its own."""
    import pyarrow.parquet  # noqa: F401 - 0.3 s, which no side answers for

    groups = max(2, int(GROUPS * scale))
    with (
        redis_server() as server,
        closing(Ledger.connect(url=server.url)) as ledger,
        tempfile.TemporaryDirectory(prefix="hq-bench-") as scratch,
    ):
        made = list(jobs(groups * SIZE, group_size=SIZE, env="bench", item={"x": 1}))
        shape = {"tokens": TOKENS, "words": 3400, "messages": 2, "sampled": 0.35}
        records = [record(job, **shape) for job in made]  # type: ignore[arg-type]
        publish(ledger, made, records)
        turns = 0

        def timed(work: Callable[[str], Coroutine[Any, Any, None]]) -> Turn:
            nonlocal turns
            turns += 1
            with metered(redis=server.pid) as meter:
                asyncio.run(work(f"bench{turns}"))
            return meter.turn(groups, of=(HERE,))

        async def write(name: str) -> None:
            with ParquetSink(Path(scratch) / name) as sink:
                for start in range(0, len(records), SIZE):
                    sink.write(records[start : start + SIZE])

        yield {
            "groups of 8 x 8,192 tokens": {
                "consumed only": lambda: timed(lambda name: consume_only(server.url, name)),
                "written only": lambda: timed(write),
                "ours": lambda: timed(
                    lambda name: into_parquet(server.url, name, Path(scratch) / name)
                ),
            }
        }


PART = Part("group", cases)
