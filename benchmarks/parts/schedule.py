"""The choice of the next job among 1,000 to 100,000 that wait in 200 runs of 20 teams.

Each side takes leases of jobs on a redis-server with AOF, as workers do: `named` of the job that
the message names, without a choice; `ours alone` of the one that is next, a round trip each; `ours,
64 at once` in pipelines of 64, as a loaded worker does; `ours, ready for none` by a worker whose
host is ready for others than those that are next, so that more groups are looked at. `redis_us`:
what the script took in Redis; the difference to `named` is the choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from benchmarks.jobs import ROW
from benchmarks.measuring import Cases, Part, Turn, metered
from benchmarks.processes import Server, redis_server
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.keyspace.calls import ScriptCall
from hermes_queue.ledger import Begun, Ledger, transitions
from hermes_queue.ledger.answers import RunPart
from hermes_queue.models import AgentSpec, TrajectoryJob
from hermes_queue.settings import ResultSettings
from hermes_queue.wire.names import make_ids
from workers.intake.ready import REMEMBERED

RUNS, TEAMS = 200, 20
TAKEN = 320
WAITING = (1_000, 10_000, 100_000)
READY = "".join(f" f{number:07x}" for number in range(REMEMBERED)) + " "
_numbers = itertools.count()


def jobs_of(run_id: str, count: int, *, first: int = 0) -> list[TrajectoryJob]:
    """Jobs of groups of one, numbered from `first` on."""
    made = []
    for number in range(first, first + count):
        group_id, trajectory_id = make_ids(run_id, f"i{number}", 0)
        made.append(
            TrajectoryJob(
                run_id=run_id,
                group_id=group_id,
                trajectory_id=trajectory_id,
                sample_index=0,
                group_size=1,
                env="gsm8k",
                instance_id=f"i{number}",
                item=ROW,
                agent=AgentSpec(kind="nop"),
                needs=f"{number:08x}",
            )
        )
    return made


class Backlog:
    """Jobs that wait on a server of their own."""

    def __init__(self, server: Server, ledger: Ledger, count: int) -> None:
        self._server, self._ledger = server, ledger
        self._each = each = count // RUNS + 1
        for number in range(RUNS):
            part = RunPart(team=f"team{number % TEAMS}", weight=1 + number % 3)
            enqueue(jobs_of(f"r{number}", each), ledger=ledger, part=part)
        self._own = itertools.count()

    def take(self, count: int, *, at_once: int, chosen: bool, ready: str = "") -> Turn:
        """Take leases of as many jobs as are enqueued before."""
        names = [f"gone.x.{number}" for number in range(count)]
        if not chosen:
            extra = jobs_of(f"named{next(self._own)}", count)
            enqueue(extra, ledger=self._ledger)
            names = [job.trajectory_id for job in extra]
        else:
            more = count // RUNS + 1
            for number in range(RUNS):
                enqueue(jobs_of(f"r{number}", more, first=self._each), ledger=self._ledger)
            self._each += more
        calls = [_call(name, chosen, ready) for name in names]
        self._server.client.config_resetstat()
        with metered(redis=self._server.pid) as meter:
            for first in range(0, count, at_once):
                for begun in self._ledger.make_all(calls[first : first + at_once]):
                    if isinstance(begun, Exception) or begun.verdict != "run":
                        raise RuntimeError(f"not leased: {begun!r}")
        stats = self._server.client.info("commandstats")["cmdstat_evalsha"]
        return meter.turn(count, facts={"redis_us": float(stats["usec_per_call"])})


def _call(name: str, chosen: bool, ready: str) -> ScriptCall[Begun]:
    number = next(_numbers)
    return transitions.begin(
        name,
        1,
        owner="bench",
        lease_s=3600.0,
        nonce=str(number),
        results=ResultSettings(),
        lanes=("train",) if chosen else (),
        slot=number,
        ready=ready,
    )


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One case for each backlog."""
    taken = max(64, int(TAKEN * scale))
    with ExitStack() as stack:
        found: dict[str, dict[str, partial[Turn]]] = {}
        for waiting in WAITING:
            server = stack.enter_context(redis_server())
            ledger = stack.enter_context(closing(Ledger.connect(url=server.url)))
            take = Backlog(server, ledger, int(waiting * scale)).take
            found[f"{waiting:,} waiting in {RUNS} runs"] = {
                "named": partial(take, taken, at_once=1, chosen=False),
                "named, 64 at once": partial(take, taken, at_once=64, chosen=False),
                "ours alone": partial(take, taken, at_once=1, chosen=True),
                "ours, 64 at once": partial(take, taken, at_once=64, chosen=True),
                "ours, ready for none": partial(take, taken, at_once=1, chosen=True, ready=READY),
            }
        yield found


PART = Part("lease", cases)
