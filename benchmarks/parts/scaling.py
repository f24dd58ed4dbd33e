"""No-op trajectories with one, two and four worker processes on this machine; 64 at once in each.

As in `factory`: everything but model and sandbox is real. Workers and the consumer run before the
jobs are enqueued; counted from the moment when all are enqueued and a tenth is final. CPU time is
that of the workers and of Redis. The side to compare with is one worker; where workers, Redis and
consumer outnumber the processors, the rate cannot grow in proportion, and the CPU time for a
trajectory shows what sharing costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from benchmarks import noop
from benchmarks.jobs import ROW, RUN, jobs
from benchmarks.measuring import Cases, Part, Turn, metered
from benchmarks.parts.factory import AT_ONCE, GROUP_SIZE, calls
from benchmarks.processes import reader, redis_server, until, worker
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec

COUNT = 3000
WORKERS = (1, 2, 4)


def run(count: int, workers: int) -> Turn:
    """The whole way, with so many workers."""
    nop = AgentSpec(kind="nop")
    made = jobs(count, group_size=GROUP_SIZE, env="gsm8k", item=ROW, agent=nop)
    with ExitStack() as stack:
        server = stack.enter_context(redis_server())
        ledger = stack.enter_context(closing(Ledger.connect(url=server.url)))
        running = [
            stack.enter_context(worker(server, noop.WORKER, concurrency=AT_ONCE))
            for _ in range(workers)
        ]
        consumer = stack.enter_context(reader(server, RUN))
        until(lambda: len(ledger.workers()) == workers, *running)
        enqueue(made, ledger=ledger)
        until(lambda: ledger.run_status(RUN).finished >= count // 10, *running)
        done, before = ledger.run_status(RUN).finished, calls(server)
        names = [f"worker{number}" for number in range(1, workers + 1)]
        pids = dict(zip(names, (each.pid for each in running), strict=True))
        with metered(redis=server.pid, consumer=consumer.pid, **pids) as meter:
            until(lambda: ledger.run_status(RUN).finished == count, *running, consumer)
        more = count - done
        facts = {name: (n - before.get(name, 0)) / more for name, n in calls(server).items()}
    used = [meter.cpu_s[name] for name in names]
    facts = {
        "workers_cpu_ms": 1000 * sum(used) / more,
        "busiest_worker_percent": 100 * max(used) / meter.wall_s,
        "redis_percent": 100 * meter.cpu_s["redis"] / meter.wall_s,
        "redis_commands": facts["redis_commands"],
        "redis_reads": facts["redis_reads"],
    }
    return meter.turn(more, of=("redis", *names), facts=facts)


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One case; the ratios are those to one worker."""
    count = max(80, int(COUNT * scale) // 40 * 40)
    yield {
        "no-op trajectories": {
            "one worker": partial(run, count, 1),
            **{f"ours, {n} workers": partial(run, count, n) for n in WORKERS[1:]},
        }
    }


PART = Part("trajectory", cases)
