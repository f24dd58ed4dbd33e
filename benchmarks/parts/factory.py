"""No-op trajectories from the queue to the consumer, beside Inspect AI and Harbor; 64 at once.

- ours: gsm8k jobs in groups of four, agent `nop`, a sandbox that does nothing, so no model is
  called; everything else is real: redis-server with AOF, one worker process with events on, begin,
  leases, a verifier that runs in the slot, a record spooled and published, groups consumed and
  acknowledged. CPU time is that of worker and Redis; the consumer's stands beside it.
- Inspect AI: samples of one task with a solver that returns its state and a scorer that returns 1;
  no sandbox, the mock model is not called; its log file and buffer are written as by default.
- Harbor: attempts of one task with an environment, an agent and a verifier that do nothing; its job
  directory is written as by default, its usage reports are off. It needs Python 3.12, which is
  looked for on the PATH and asked of uv; where there is none, the report says so.

Starting is not counted: ours from the moment when a tenth of the jobs is final, the others
after 64 samples or trials of a run before, in the same process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from benchmarks import noop
from benchmarks.jobs import ROW, RUN, jobs
from benchmarks.measuring import Cases, Part, Side, Turn, metered
from benchmarks.parts.streams import read
from benchmarks.processes import Server, peer_python, peer_turn, redis_server, until, worker
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec

COUNT = 2000
INSPECT_COUNT = 600
HARBOR_COUNT = 300
GROUP_SIZE = 4
AT_ONCE = 64
COUNTED = ("evalsha", "multi", "publish", "brpop", "xadd", "hset")
"""Commands that stand in the report; all are in `redis_commands`."""


def ours(count: int, settings: Mapping[str, str] = {}) -> Turn:
    """The whole way; `settings` are further ones of the worker."""
    nop = AgentSpec(kind="nop")
    with redis_server() as server, closing(Ledger.connect(url=server.url)) as ledger:
        enqueue(jobs(count, group_size=GROUP_SIZE, env="gsm8k", item=ROW, agent=nop), ledger=ledger)
        with worker(server, {**noop.WORKER, **settings}, concurrency=AT_ONCE) as running:
            until(lambda: ledger.run_status(RUN).finished >= count // 10, running)
            done, before = ledger.run_status(RUN).finished, calls(server)
            with metered(worker=running.pid, redis=server.pid) as meter:
                asyncio.run(read(server.url, count // GROUP_SIZE))
            made = count - done
            facts = {name: (n - before.get(name, 0)) / made for name, n in calls(server).items()}
    return meter.turn(made, of=("worker", "redis"), facts=facts)


def calls(server: Server) -> dict[str, float]:
    """What Redis was asked so far; commands within scripts and transactions are included."""
    stats = server.client.info("commandstats")
    by_name = {name.removeprefix("cmdstat_"): float(row["calls"]) for name, row in stats.items()}
    found = {f"redis_{name}": by_name.get(name, 0.0) for name in COUNTED}
    found["redis_commands"] = sum(by_name.values())
    found["redis_reads"] = server.number("stats", "total_reads_processed")
    found["redis_in_bytes"] = server.number("stats", "total_net_input_bytes")
    return found


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One case."""
    sides: dict[str, Side | str] = {"ours": partial(ours, max(80, int(COUNT * scale) // 40 * 40))}
    peers = {
        "inspect": (peer_python("inspect"), INSPECT_COUNT),
        "harbor": (peer_python("harbor", at_least=(3, 12)), HARBOR_COUNT),
    }
    for name, (python, full) in peers.items():
        units = max(AT_ONCE, int(full * scale))
        sides[name] = (
            python
            if isinstance(python, str)
            else partial(peer_turn, python, f"run_{name}.py", units, AT_ONCE)
        )
    yield {"no-op trajectories": sides}


PART = Part("trajectory", cases)
