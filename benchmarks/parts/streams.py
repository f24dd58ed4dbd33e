"""Begin, publish, consume with one client, beside bare redis-py that moves the same bytes.

Records of 3,000 tokens (116 kB as JSON, 41 kB encoded) in groups of eight. `begin` is one call of
the ledger a trajectory, `publish` one with the encoded record, `consume` reads, decodes,
validates and acknowledges groups. Bare redis-py: a SET and a GET of the encoded record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager

from benchmarks.jobs import LEASE_S, jobs, record
from benchmarks.measuring import Cases, Part, Turn, metered
from benchmarks.processes import Server, redis_server
from hermes_queue import consume
from hermes_queue.bodies.codec import encode_record
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger

COUNT = 800
GROUP_SIZE = 8


class Stream:
    """A run for each round, whose trajectories are begun, then published, then consumed."""

    def __init__(self, server: Server, ledger: Ledger, count: int) -> None:
        self._server, self._ledger = server, ledger
        self._count, self._round = count, 0

    def begin(self) -> Turn:
        """The first case of a round."""
        self._round += 1
        shape = {"group_size": GROUP_SIZE, "env": "gsm8k", "item": {"x": 1}}
        made = list(jobs(self._count, run=f"bench{self._round}", **shape))  # type: ignore[arg-type]
        self._records = [record(job, tokens=3000, words=5000) for job in made]
        self._bodies = [encode_record(one) for one in self._records]
        enqueue(made, ledger=self._ledger)
        names = [job.trajectory_id for job in made]
        with metered(redis=self._server.pid) as meter:
            for name in names:
                self._ledger.begin(name, 1, owner="bench", lease_s=LEASE_S, nonce=name)
        return meter.turn(self._count)

    def publish(self) -> Turn:
        """What was begun."""
        with metered(redis=self._server.pid) as meter:
            for one, body in zip(self._records, self._bodies, strict=True):
                self._ledger.publish(one, body, owner="bench", finished_ttl_s=3600)
        return meter.turn(self._count)

    def consume(self) -> Turn:
        """What was published."""
        with metered(redis=self._server.pid) as meter:
            asyncio.run(read(self._server.url, self._count // GROUP_SIZE))
        return meter.turn(self._count)

    def bare(self, command: str) -> Turn:
        """One command for each body."""
        client = self._server.client
        with metered(redis=self._server.pid) as meter:
            for body in self._bodies:
                client.set("body", body) if command == "SET" else client.get("body")
        return meter.turn(self._count)


async def read(url: str, groups: int) -> None:
    """Consume and acknowledge so many groups."""
    async for group in consume("bench", url=url):
        await group.ack()
        groups -= 1
        if not groups:
            return


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """In the order of a trajectory's life."""
    count = max(GROUP_SIZE, int(COUNT * scale) // GROUP_SIZE * GROUP_SIZE)
    with redis_server() as server, closing(Ledger.connect(url=server.url)) as ledger:
        stream = Stream(server, ledger, count)
        yield {
            "begin": {"ours": stream.begin},
            "publish": {"bare SET": lambda: stream.bare("SET"), "ours": stream.publish},
            "consume": {"bare GET": lambda: stream.bare("GET"), "ours": stream.consume},
        }


PART = Part("trajectory", cases)
