"""Begin, publish, consume with one client, beside bare redis-py that moves the same bytes.

Records of 3,000 tokens (116 kB as JSON, 41 kB encoded) in groups of eight. `begin` and `publish`
are calls of the ledger, one round trip for what 16 trajectories do in the same moment, as in a
worker; `alone` is a round trip for each. `consume` reads, decodes, validates and acknowledges
groups. Bare redis-py: a SET, pipelined in the same way, and a GET of the encoded record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any

from benchmarks.jobs import LEASE_S, jobs, record
from benchmarks.measuring import Cases, Part, Turn, metered
from benchmarks.processes import Server, redis_server
from hermes_queue import consume
from hermes_queue.bodies.codec import encode_record
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.keyspace.calls import ScriptCall
from hermes_queue.ledger import Ledger, transitions
from hermes_queue.settings import ResultSettings

COUNT = 800
GROUP_SIZE = 8
TOGETHER = 16


class Stream:
    """A run for each round, whose trajectories are begun, then published, then consumed."""

    def __init__(self, server: Server, ledger: Ledger, count: int) -> None:
        self._server, self._ledger = server, ledger
        self._count, self._round = count, 0

    def begin(self, together: int) -> Turn:
        """The first case of a round."""
        self._round += 1
        shape = {"group_size": GROUP_SIZE, "env": "gsm8k", "item": {"x": 1}}
        made = list(jobs(self._count, run=f"bench{self._round}", **shape))  # type: ignore[arg-type]
        self._records = [record(job, tokens=3000, words=5000) for job in made]
        self._bodies = [encode_record(one) for one in self._records]
        enqueue(made, ledger=self._ledger)
        results = ResultSettings()
        return self._made(
            together,
            (
                transitions.begin(
                    job.trajectory_id,
                    1,
                    owner="bench",
                    lease_s=LEASE_S,
                    nonce=job.trajectory_id,
                    results=results,
                )
                for job in made
            ),
        )

    def publish(self, together: int) -> Turn:
        """What was begun."""
        results = ResultSettings()
        return self._made(
            together,
            (
                transitions.publish(one, body, owner="bench", finished_ttl_s=3600, results=results)
                for one, body in zip(self._records, self._bodies, strict=True)
            ),
        )

    def _made(self, together: int, calls: Iterator[ScriptCall[Any]]) -> Turn:
        with metered(redis=self._server.pid) as meter:
            while some := list(islice(calls, together)):
                for answer in self._ledger.make_all(some):
                    if isinstance(answer, Exception):
                        raise answer
        return meter.turn(self._count)

    def consume(self) -> Turn:
        """What was published."""
        with metered(redis=self._server.pid) as meter:
            asyncio.run(read(self._server.url, self._count // GROUP_SIZE))
        return meter.turn(self._count)

    def set(self) -> Turn:
        """Pipelined SETs of the bodies."""
        bodies = iter(self._bodies)
        with metered(redis=self._server.pid) as meter:
            while some := list(islice(bodies, TOGETHER)):
                with self._server.client.pipeline(transaction=False) as pipe:
                    for body in some:
                        pipe.set("body", body)
                    pipe.execute()
        return meter.turn(self._count)

    def get(self) -> Turn:
        """A GET of a body for each."""
        self._server.client.set("body", self._bodies[0])
        with metered(redis=self._server.pid) as meter:
            for _ in self._bodies:
                self._server.client.get("body")
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
            "begin": {"ours": partial(stream.begin, TOGETHER)},
            "publish": {"bare SET": stream.set, "ours": partial(stream.publish, TOGETHER)},
            "consume": {"bare GET": stream.get, "ours": stream.consume},
            "begin alone": {"ours": partial(stream.begin, 1)},
            "publish alone": {"ours": partial(stream.publish, 1)},
        }


PART = Part("trajectory", cases)
