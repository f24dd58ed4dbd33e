"""Hours of a fleet whose slots are shared by many teams, on a clock of its own.

The scheduler is the real one: the scripts of this checkout on a redis-server, but for `TIME`, which
they read from a key. Trajectories only take their time, which has a heavy tail. Reported are each
team's part of the slot-time while all teams had jobs waiting, against its weight; the longest time
that such a team went without a start; how long the first of its jobs waited; and the goodput of
all; against a queue in which whoever comes first is served first.

    python -m benchmarks.schedule_day
    python -m benchmarks.schedule_day --slots 2000 --teams 20 --hours 4
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from benchmarks.parts.schedule import jobs_of
from benchmarks.processes import redis_server
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.keyspace import scripts
from hermes_queue.keyspace.calls import ScriptCall
from hermes_queue.ledger import Ledger, transitions
from hermes_queue.ledger.answers import RunPart
from hermes_queue.ledger.scheduling import Scheduler, Shares
from hermes_queue.settings import ProducerSettings, ResultSettings
from hermes_queue.wire.ids import group_of, run_of

UNBOUNDED = ProducerSettings(backlog_max=10**9)
NO_READER = ResultSettings().model_copy(update={"soft_max_groups": 10**9, "soft_max_bytes": 10**15})
STEP_S = 5.0
AT_ONCE = 256
CLOCK = """
local now_text = redis.call('GET', 'simulated:now')
local now = tonumber(now_text)
local function stamp(at) return string.format('%.6f', at) end
"""
BEGIN_S = 1.8e9


@dataclass(frozen=True)
class Day:
    """What is simulated."""

    slots: int
    teams: int
    hours: float
    mean_s: float
    seed: int

    def weight(self, team: int) -> int:
        """Of a team: 1 to 4."""
        return 1 + team % 4

    def durations(self, team: int) -> Iterator[float]:
        """Of a team's trajectories: log-normal, teams differ by up to nine times."""
        dice = random.Random(f"{self.seed} {team}")
        mean = self.mean_s * (1 / 3, 1, 3)[team % 3] * 3 / (1 / 3 + 1 + 3)
        sigma = 1.2
        while True:
            yield dice.lognormvariate(0.0, sigma) * mean / 2.718281828 ** (sigma * sigma / 2)

    def count(self, team: int) -> int:
        """Jobs of a team: enough for all of its share, and half as many again."""
        weights = sum(map(self.weight, range(self.teams)))
        mean = self.mean_s * (1 / 3, 1, 3)[team % 3] * 3 / (1 / 3 + 1 + 3)
        share = self.slots * self.hours * 3600 * self.weight(team) / weights / mean
        return int(1.5 * share + 2 * self.slots * self.weight(team) / weights) + 8


@dataclass
class Outcome:
    """What a simulation showed."""

    used_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Slot-seconds by team, after the first half hour."""
    started: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds from the beginning at which trajectories of a team began."""
    ended: int = 0
    """Trajectories that ended in these hours."""
    ended_s: float = 0.0
    """Their slot-seconds."""

    def end(self, seconds: float) -> None:
        """One has ended that took so long."""
        self.ended += 1
        self.ended_s += seconds


@contextmanager
def simulated_time() -> Iterator[None]:
    """Have scripts read the time from a key."""
    real = scripts._text

    def text(name: str) -> str:
        return CLOCK if name == "include/time" else real(name)

    scripts.script.cache_clear()
    with patch.object(scripts, "_text", text):
        yield
    scripts.script.cache_clear()


class Fleet:
    """The slots, and the ledger that fills them."""

    def __init__(self, day: Day, ledger: Ledger) -> None:
        self._day, self._ledger = day, ledger
        self._running: list[tuple[float, str, int, int, float]] = []
        self._durations = {team: day.durations(team) for team in range(day.teams)}
        self._numbers = itertools.count()
        self.outcome = Outcome()

    def set_clock(self, now_s: float) -> None:
        """Seconds from the beginning."""
        self._ledger.client.set("simulated:now", f"{BEGIN_S + now_s:.6f}")

    def run(self) -> Outcome:
        """All hours, step by step."""
        now_s, scheduler = 0.0, Scheduler(self._ledger)
        while now_s < self._day.hours * 3600:
            self.set_clock(now_s)
            self._end(now_s)
            scheduler.tick([], every_s=0)
            self._fill(now_s)
            now_s += STEP_S
        for _, _, team, _, began_s in self._running:
            self._count(team, began_s, now_s)
        return self.outcome

    def _count(self, team: int, began_s: float, ended_s: float) -> None:
        self.outcome.used_s[team] += max(0.0, ended_s - max(began_s, 1800.0))

    def _end(self, now_s: float) -> None:
        ended = []
        while self._running and self._running[0][0] <= now_s:
            ends_s, name, team, epoch, began_s = heapq.heappop(self._running)
            self._count(team, began_s, ends_s)
            self.outcome.end(ends_s - began_s)
            ended.append(publication(name, epoch))
        for some in _pieces(ended):
            for verdict in self._ledger.make_all(some):
                if isinstance(verdict, Exception) or verdict not in (b"ok", b"group", b"dropped"):
                    raise RuntimeError(f"not published: {verdict!r}")

    def _fill(self, now_s: float) -> None:
        while len(self._running) < self._day.slots:
            free = min(AT_ONCE, self._day.slots - len(self._running))
            calls = []
            for number in itertools.islice(self._numbers, free):
                nonce = str(number)
                calls.append(
                    transitions.begin(
                        "gone.x.0", 1, owner="sim", lease_s=1e6, nonce=nonce, results=NO_READER,
                        lanes=("train",), slot=number,
                    )
                )  # fmt: skip
            for begun in self._ledger.make_all(calls):
                if isinstance(begun, Exception) or begun.verdict != "run":
                    raise RuntimeError(f"no job: {begun!r}")
                team = int(run_of(begun.trajectory_id).removeprefix("team"))
                ends_s = now_s + next(self._durations[team])
                entry = (ends_s, begun.trajectory_id, team, begun.epoch, now_s)
                heapq.heappush(self._running, entry)
                self.outcome.started[team].append(now_s)


def _pieces(calls: Sequence[ScriptCall[bytes]]) -> Iterator[Sequence[ScriptCall[bytes]]]:
    for first in range(0, len(calls), AT_ONCE):
        yield calls[first : first + AT_ONCE]


def publication(name: str, epoch: int) -> ScriptCall[bytes]:
    return ScriptCall.of(
        "publish", lambda answer: bytes(answer.verdict), body=b"x", token="", id=name,
        group_id=group_of(name), run_id=run_of(name), owner="sim", epoch=epoch, score=1.0,
        object="", sample_index=0, finished_ttl_s=60, schema_version=1, codec="none",
        refillable=False, failure="", hard_max_groups=1e12, hard_max_bytes=1e15, cost_usd="",
        tokens=0, policy_oldest="", from_disk=False, summary="",
    )  # fmt: skip


def fair(day: Day) -> Outcome:
    """The simulation with our scheduler."""
    with (
        simulated_time(),
        redis_server() as server,
        closing(Ledger.connect(url=server.url)) as ledger,
    ):
        fleet = Fleet(day, ledger)
        fleet.set_clock(0.0)
        for team in range(day.teams):
            Shares(ledger).change("team", f"t{team}", {"weight": day.weight(team)})
            jobs = jobs_of(f"team{team}", day.count(team))
            enqueue(jobs, ledger=ledger, part=RunPart(team=f"t{team}"), settings=UNBOUNDED)
        return fleet.run()


def first_come(day: Day) -> Outcome:
    """The same jobs in one queue, in the order in which the teams came."""
    outcome, free = Outcome(), [0.0] * day.slots
    end_s = day.hours * 3600
    for team in range(day.teams):
        for duration in itertools.islice(day.durations(team), day.count(team)):
            began = free[0]
            if began >= end_s:
                break
            heapq.heapreplace(free, began + duration)
            outcome.started[team].append(began)
            if began + duration <= end_s:
                outcome.end(duration)
            outcome.used_s[team] += max(0.0, min(began + duration, end_s) - max(began, 1800.0))
    return outcome


def shares(day: Day, outcome: Outcome) -> list[float]:
    """Each team's part of the slot-time, over the part that its weight stands for."""
    total, weights = sum(outcome.used_s.values()), sum(map(day.weight, range(day.teams)))
    return [
        outcome.used_s[team] / total / (day.weight(team) / weights) for team in range(day.teams)
    ]


def longest_gap_s(day: Day, outcome: Outcome) -> float:
    """The longest time that a team went without a start."""
    gaps = []
    for team in range(day.teams):
        times = [0.0, *sorted(outcome.started[team]), day.hours * 3600]
        gaps.append(max(later - sooner for sooner, later in itertools.pairwise(times)))
    return max(gaps)


def say(name: str, day: Day, outcome: Outcome) -> None:
    """Print what came out."""
    found = shares(day, outcome)
    slot_s = 3600 * day.slots * day.hours
    began = [min(outcome.started[team], default=day.hours * 3600) for team in range(day.teams)]
    print(
        f"{name:<12} part of the slot-time over weight {min(found):.3f} to {max(found):.3f}; "
        f"longest time without a start {longest_gap_s(day, outcome):,.0f} s; first start after "
        f"{statistics.median(began):,.0f} s in the median, {max(began):,.0f} s at most; goodput "
        f"{3600 * outcome.ended / slot_s:.3f} trajectories a slot-hour, "
        f"{100 * outcome.ended_s / slot_s:.1f} % of the slot-time in them"
    )


def main(given: Sequence[str] | None = None) -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slots", type=int, default=10_000, help="slots (default: 10,000)")
    parser.add_argument("--teams", type=int, default=50, help="teams (default: 50)")
    parser.add_argument("--hours", type=float, default=8.0, help="hours (default: 8)")
    parser.add_argument(
        "--mean-s", type=float, default=1800.0, help="mean time of a trajectory (default: 1800)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the dice (default: 1)")
    day = Day(**vars(parser.parse_args(given)))
    print(f"{day.slots:,} slots, {day.teams} teams with weights 1 to 4, {day.hours:g} hours")
    say("fair shares", day, fair(day))
    say("first come", day, first_come(day))


if __name__ == "__main__":
    main()
