"""Builds on several hosts, if each prefers the groups for which it is ready, and if none does.

The scheduler is the real one, on a clock of its own: see `benchmarks.schedule_day`. Items need one
of many assets each, in random order. A host builds an asset once; what needs one that is being
built waits for it. Reported are the builds, the slot-time that waited for them, the time until the
last trajectory ended, and how much later than in the order of sending groups began.

    python -m benchmarks.ready_hosts
    python -m benchmarks.ready_hosts --hosts 4 --group 8 --assets 500 --build-s 300
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from benchmarks.jobs import ROW
from benchmarks.processes import redis_server
from benchmarks.schedule_day import BEGIN_S, NO_READER, UNBOUNDED, publication, simulated_time
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Begun, Ledger, transitions
from hermes_queue.models import AgentSpec, TrajectoryJob
from hermes_queue.wire.names import make_ids
from workers.intake.ready import ReadyNeeds


@dataclass(frozen=True)
class Batch:
    """What is simulated."""

    hosts: int
    slots: int
    items: int
    group: int
    assets: int
    build_s: float
    mean_s: float
    seed: int

    def jobs(self) -> Iterator[TrajectoryJob]:
        """Those of all groups, in the order of sending."""
        dice = random.Random(self.seed)
        for number in range(self.items):
            needs = f"{dice.randrange(self.assets):08x}"
            for sample in range(self.group):
                group_id, trajectory_id = make_ids("batch", f"i{number}", sample)
                yield TrajectoryJob(
                    run_id="batch", group_id=group_id, trajectory_id=trajectory_id,
                    sample_index=sample, group_size=self.group, env="gsm8k", needs=needs,
                    instance_id=f"i{number}", item=ROW, agent=AgentSpec(kind="nop"),
                )  # fmt: skip


@dataclass
class Host:
    """What a host has built, and what its worker says of it."""

    built_at: dict[str, float] = field(default_factory=dict)
    ready: ReadyNeeds = field(default_factory=ReadyNeeds)


class Batches:
    """The slots of all hosts, and the ledger that fills them."""

    def __init__(self, batch: Batch, ledger: Ledger, *, says: bool) -> None:
        self._batch, self._ledger, self._says = batch, ledger, says
        self._hosts = [Host() for _ in range(batch.hosts)]
        self._dice = random.Random(f"{batch.seed} times")
        self._numbers = itertools.count()
        self._order = {job.group_id: n // batch.group for n, job in enumerate(batch.jobs())}
        self._begun: dict[str, int] = {}
        self.waited_s = self.ended_s = 0.0

    @property
    def builds(self) -> int:
        """Of all hosts."""
        return sum(len(host.built_at) for host in self._hosts)

    def later(self) -> int:
        """By how many groups the one that was overtaken most began later than its place."""
        return max(place - self._order[name] for name, place in self._begun.items())

    def run(self) -> None:
        """Until all is done."""
        events: list[tuple[float, int, int, Begun | None]] = [
            (self._dice.random(), next(self._numbers), host, None)
            for host in range(self._batch.hosts)
            for _ in range(self._batch.slots)
        ]
        heapq.heapify(events)
        while events:
            now_s, _, number, done = heapq.heappop(events)
            self._ledger.client.set("simulated:now", f"{BEGIN_S + now_s:.6f}")
            if done:
                self.ended_s = now_s
                self._ledger.make(publication(done.trajectory_id, done.epoch))
            begun = self._take(self._hosts[number])
            if begun.verdict == "run":
                ends_s = self._ends_s(self._hosts[number], begun, now_s)
                heapq.heappush(events, (ends_s, next(self._numbers), number, begun))

    def _take(self, host: Host) -> Begun:
        number = next(self._numbers)
        begun = self._ledger.make(
            transitions.begin(
                "gone.x.0", 1, owner="sim", lease_s=1e6, nonce=str(number), results=NO_READER,
                lanes=("train",), slot=number, ready=host.ready.text if self._says else "",
            )
        )  # fmt: skip
        host.ready.note(begun.needs)
        return begun

    def _ends_s(self, host: Host, begun: Begun, now_s: float) -> float:
        self._begun.setdefault(begun.trajectory_id.rsplit(".", 1)[0], len(self._begun))
        built_at = host.built_at.setdefault(begun.needs, now_s + self._batch.build_s)
        waits_s = max(0.0, built_at - now_s)
        self.waited_s += waits_s
        return now_s + waits_s + self._dice.lognormvariate(-0.5, 1.0) * self._batch.mean_s


def simulate(batch: Batch, *, says: bool) -> Batches:
    """The batch from its first lease to its last result."""
    with (
        simulated_time(),
        redis_server() as server,
        closing(Ledger.connect(url=server.url)) as ledger,
    ):
        jobs = batch.jobs()
        for number in itertools.count():
            ledger.client.set("simulated:now", f"{BEGIN_S - 600 + number / 50:.6f}")
            if not (some := list(itertools.islice(jobs, 400 // batch.group * batch.group))):
                break
            enqueue(some, ledger=ledger, settings=UNBOUNDED)
        found = Batches(batch, ledger, says=says)
        found.run()
        return found


def main(given: Sequence[str] | None = None) -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=8, help="hosts (default: 8)")
    parser.add_argument("--slots", type=int, default=16, help="slots of a host (default: 16)")
    parser.add_argument("--items", type=int, default=4000, help="groups (default: 4000)")
    parser.add_argument("--group", type=int, default=1, help="samples of a group (default: 1)")
    parser.add_argument("--assets", type=int, default=100, help="assets (default: 100)")
    parser.add_argument("--build-s", type=float, default=120.0, help="of one (default: 120)")
    parser.add_argument(
        "--mean-s", type=float, default=300.0, help="mean time of a trajectory (default: 300)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the dice (default: 1)")
    batch = Batch(**vars(parser.parse_args(given)))
    print(", ".join(f"{name} {value:g}" for name, value in vars(batch).items()))
    for name, says in (("by order", False), ("hosts that say what is ready", True)):
        found = simulate(batch, says=says)
        print(
            f"{name:<30} {found.builds:,} builds, {found.waited_s / 3600:,.1f} slot-hours waited "
            f"for them, all done after {found.ended_s / 3600:.2f} h; "
            f"a group began {found.later()} groups later than its place at most"
        )


if __name__ == "__main__":
    main()
