"""Simulate a fleet with measured costs: how busy Redis, workers and endpoint are, what fills first.

Every slot runs one trajectory after another: begin in Redis; turns, each a model call with the
limiter's permit and a tool call; verify; publish. Single processes (Redis, workers, consumers)
serve in the order of arrival and take a core while they do. Reply and tool times are random.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

WARM_UP = 1 / 3  # of the simulated time; it is not counted
RENEW_S, WEEK_S, QUARTER_S = 10, 7 * 86400, 90 * 86400

EXAMPLES = """\
how to read it:
  "busy": share of the time in which a station worked; "full at": slots that would make it busy all
  the time; "waits": what callers waited in line. The first bottleneck is what the fewest slots
  fill. All costs are options: measure yours (python -m benchmarks scaling loops streams).

examples:
  50 hosts with 200 slots each; calls of 5 to 20 s
    python -m benchmarks.simulate
  the same with a model that answers in a second, and two Redis servers, half of the hosts each
    python -m benchmarks.simulate --reply-s 0.5 1.5 --shards 2
  an endpoint that serves 1,024 calls at once
    python -m benchmarks.simulate --endpoint-calls 1024
  the benchmark "factory": no-op trajectories, everything on two cores
    python -m benchmarks.simulate --hosts 1 --slots 64 --turns 0 --verify-ms 0 --record-ms 0 \\
      --cores 2 --one-machine --minutes 0.5
"""


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Fleet:
    """What is simulated. CPU times are milliseconds of one core."""

    hosts: int = option(50, "machines with workers")
    slots: int = option(200, "trajectories that a host runs at once")
    workers: int = option(1, "worker processes of a host, which share its slots")
    cores: int = option(16, "cores of a host")
    shards: int = option(1, "Redis servers, each with its own hosts (a deployment per lane)")
    turns: int = option(20, "turns of a trajectory: a model call and a tool call each")
    reply_s: tuple[float, float] = option((5.0, 20.0), "a model call takes from A to B seconds")
    tool_s: tuple[float, float] = option((0.0, 2.0), "a command waits from A to B seconds")
    endpoint_calls: int = option(0, "calls that the model endpoint serves at once; 0 = any number")
    consumers: int = option(1, "consumer processes of each Redis server")
    one_machine: bool = option(False, "Redis and consumers take the cores of the first host")
    trajectory_ms: float = option(1.3, "a worker's CPU for a trajectory without turns")
    turn_ms: float = option(3.8, "a worker's CPU for a turn: call, reply, tool call")
    tool_ms: float = option(100.0, "CPU of a command on its host")
    verify_ms: float = option(2000.0, "CPU of grading on its host")
    redis_ms: float = option(0.28, "Redis' CPU for a trajectory without turns")
    permit_ms: float = option(0.13, "Redis' CPU for the permit of a call")
    ask_ms: float = option(0.1, "Redis' CPU for asking again while the endpoint is busy")
    record_ms: float = option(0.4, "Redis' CPU for a real record, taken and read, beyond redis-ms")
    renew_ms: float = option(0.015, f"Redis' CPU for renewing a lease, every {RENEW_S} s")
    upkeep_ms: float = option(1.8, "Redis' CPU for each worker process in a second, also when idle")
    consumer_ms: float = option(0.4, "a consumer's CPU for a trajectory")
    record_kb: float = option(41.0, "an encoded record")
    other_kb: float = option(3.9, "what else travels to Redis for a trajectory without turns")
    permit_kb: float = option(0.6, "what travels to Redis for the permit of a call")
    state_bytes: float = option(650.0, "a finished trajectory in Redis, for a week")
    claim_bytes: float = option(64.0, "its claim in Redis, for 90 days or until `run purge`")
    minutes: float = option(
        15.0, "simulated time; its first third, longer than a trajectory, does not count"
    )
    seed: int = option(1, "of all random numbers: the same seed gives the same output")


class Cores:
    """The cores of one machine. Only what begins after `since` is counted."""

    def __init__(self, count: int, since: float) -> None:
        self._free_at, self._since = [0.0] * count, since
        self.busy_s = 0.0

    def serve(self, ready: float, service_s: float) -> float:
        """Work for so long, not before `ready`; returns the end."""
        # The core that was freed last: a process that goes on must not reserve a second one.
        idle = [free for free in self._free_at if free <= ready]
        chosen = max(idle) if idle else min(self._free_at)
        end = max(ready, chosen) + service_s
        self._free_at[self._free_at.index(chosen)] = end
        self.busy_s += service_s if ready >= self._since else 0.0
        return end


class Process:
    """A single-threaded server, first come, first served; `background`: share of other work."""

    def __init__(self, cores: Cores, since: float, background: float = 0.0) -> None:
        self._cores, self._since, self._free_at = cores, since, 0.0
        self.background = background
        self.busy_s, self.waits = 0.0, list[float]()

    def serve(self, now: float, service_s: float) -> float:
        """Returns the time at which a request that arrives now is done."""
        taken_s = service_s / (1 - self.background)
        self._free_at = end = self._cores.serve(max(now, self._free_at), taken_s)
        if now >= self._since:
            self.busy_s += service_s
            self.waits.append(end - taken_s - now)
        return end


class Endpoint:
    """Serves so many calls at once, in order; 0 = any number."""

    def __init__(self, places: int, since: float) -> None:
        self._free_at, self._since = [0.0] * places, since
        self.calls, self.busy_s, self.waited_s = 0, 0.0, 0.0

    def serve(self, now: float, reply_s: float) -> tuple[float, float]:
        """When the reply is there, and the wait before."""
        begin = now
        if self._free_at:
            begin = max(now, self._free_at[0])
            heapq.heapreplace(self._free_at, begin + reply_s)
        if now >= self._since:
            self.calls, self.busy_s = self.calls + 1, self.busy_s + reply_s
            self.waited_s += begin - now
        return begin + reply_s, begin - now


def asks(wait_s: float) -> float:
    """How often a call asks again: after half of the expected wait, at most 5 s, at least 5 ms."""
    return wait_s / 5 + math.log2(1 + min(wait_s, 10.0) / 0.005)


class Simulation:
    """One fleet for some minutes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.dice = fleet, random.Random(fleet.seed)
        self.end = 60 * fleet.minutes
        self.since = since = self.end * WARM_UP
        host_ms = fleet.workers * fleet.upkeep_ms + fleet.slots * fleet.renew_ms / RENEW_S
        background = min(0.999, fleet.hosts / fleet.shards * host_ms / 1000)
        self.machines = [Cores(fleet.cores, since) for _ in range(fleet.hosts)]

        shared = self.machines[0] if fleet.one_machine else None

        def processes(count: int, background: float = 0.0) -> list[Process]:
            return [Process(shared or Cores(1, since), since, background) for _ in range(count)]

        self.redis = processes(fleet.shards, background)
        self.consumers = processes(fleet.shards * fleet.consumers)
        self.workers = [Process(at, since) for at in self.machines for _ in range(fleet.workers)]
        self.endpoint = Endpoint(fleet.endpoint_calls, since)
        self.durations: list[float] = []

    def run(self) -> None:
        """Simulate; slots begin one after another, so that they are not in step."""
        turn_s = (sum(self.fleet.reply_s) + sum(self.fleet.tool_s)) / 2
        spread_s = min(self.fleet.turns * turn_s, self.since)
        events = []
        for number in range(self.fleet.hosts * self.fleet.slots):
            slot = self._slot(number)
            next(slot)
            events.append((self.dice.uniform(0, spread_s), number, slot))
        heapq.heapify(events)
        while events[0][0] < self.end:
            now, number, slot = events[0]
            heapq.heapreplace(events, (slot.send(now), number, slot))

    def _slot(self, number: int) -> Generator[float, float, None]:
        """One slot: is sent the time, yields when it goes on."""
        fleet, dice = self.fleet, self.dice
        host, turn = number % fleet.hosts, number // fleet.hosts
        shard = host % fleet.shards
        machine, redis = self.machines[host], self.redis[shard]
        worker = self.workers[host * fleet.workers + turn % fleet.workers]
        consumer = self.consumers[shard * fleet.consumers + turn % fleet.consumers]
        now = yield 0.0
        while True:
            began = now
            now = yield redis.serve(now, fleet.redis_ms / 2000)
            now = yield worker.serve(now, fleet.trajectory_ms / 2000)
            for _ in range(fleet.turns):
                reply_at, wait_s = self.endpoint.serve(now, dice.uniform(*fleet.reply_s))
                redis.serve(now, (fleet.permit_ms + fleet.ask_ms * asks(wait_s)) / 1000)
                now = yield reply_at
                now = yield worker.serve(now, fleet.turn_ms / 1000)
                now = yield machine.serve(now, fleet.tool_ms / 1000) + dice.uniform(*fleet.tool_s)
            now = yield machine.serve(now, fleet.verify_ms / 1000)
            now = yield worker.serve(now, fleet.trajectory_ms / 2000)
            now = yield redis.serve(now, (fleet.redis_ms / 2 + fleet.record_ms) / 1000)
            consumer.serve(now, fleet.consumer_ms / 1000)
            if now >= self.since:
                self.durations.append(now - began)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def station(name: str, busy: float, slots: int, waits: Sequence[float] = ()) -> dict[str, Any]:
    found = {"station": name, "busy": busy, "full_at_slots": slots / busy if busy else math.inf}
    shares = (("p50", 0.5), ("p99", 0.99)) if waits else ()
    return found | {f"wait_{name}_ms": 1000 * percentile(waits, share) for name, share in shares}


def simulate(fleet: Fleet) -> dict[str, Any]:
    found = Simulation(fleet)
    found.run()
    seconds, slots, endpoint = found.end - found.since, fleet.hosts * fleet.slots, found.endpoint
    rate = len(found.durations) / seconds
    groups = {"Redis": found.redis, "workers": found.workers, "consumers": found.consumers}
    stations = []
    for name, processes in groups.items():
        busy = max(each.busy_s / seconds + each.background for each in processes)
        waits = [wait for each in processes for wait in each.waits]
        stations.append(station(f"{name} ({len(processes)})", min(1.0, busy), slots, waits))
    used = max(machine.busy_s for machine in found.machines) / seconds / fleet.cores
    stations.append(station(f"cores of a host ({fleet.cores})", min(1.0, used), slots))
    if fleet.endpoint_calls:
        busy = min(1.0, endpoint.busy_s / seconds / fleet.endpoint_calls)
        stations.append(station(f"endpoint ({fleet.endpoint_calls})", busy, slots))
    to_redis_kb = fleet.record_kb + fleet.other_kb + fleet.turns * fleet.permit_kb
    return {
        "fleet": asdict(fleet),
        "trajectories_per_s": rate,
        "trajectory_p50_s": percentile(found.durations, 0.5),
        "calls_per_s": endpoint.calls / seconds,
        "calls_in_flight": endpoint.busy_s / seconds,
        "call_wait_s": endpoint.waited_s / max(1, endpoint.calls),
        "stations": stations,
        "first_bottleneck": min(stations, key=lambda each: each["full_at_slots"])["station"],
        "redis_in_mb_per_s": rate * to_redis_kb / 1000,
        "redis_out_mb_per_s": rate * (2 * fleet.record_kb + fleet.other_kb) / 1000,
        "state_gb": rate * WEEK_S * fleet.state_bytes / 1e9,
        "claims_gb": rate * QUARTER_S * fleet.claim_bytes / 1e9,
    }


def report(found: dict[str, Any]) -> list[str]:
    hosts, slots, turns = (found["fleet"][name] for name in ("hosts", "slots", "turns"))
    lines = [
        f"{hosts} hosts x {slots} slots = {hosts * slots:,} trajectories of {turns} turns at once",
        "trajectories   {trajectories_per_s:.1f} a second, {trajectory_p50_s:.3g} s in the median",
        "model calls    {calls_per_s:.0f} a second, {calls_in_flight:,.0f} in flight, "
        "{call_wait_s:.1f} s in line",
        "Redis network  {redis_in_mb_per_s:.1f} MB/s in, {redis_out_mb_per_s:.1f} MB/s out",
        "Redis memory   {state_gb:.1f} GB of finished state after a week, "
        "{claims_gb:.1f} GB of claims after 90 days",
        f"\n{'station':<24}{'busy':>8}{'full at':>18}{'waits p50 / p99':>22}",
    ]
    for each in found["stations"]:
        waits = "{wait_p50_ms:.1f} / {wait_p99_ms:.1f} ms" if "wait_p50_ms" in each else ""
        waits, full = waits.format_map(each), f"{each['full_at_slots']:,.0f} slots"
        lines.append(f"{each['station']:<24}{100 * each['busy']:>7.1f}%{full:>18}{waits:>22}")
    lines.append("\nfirst bottleneck: {first_bottleneck}")
    return [line.format_map(found) for line in lines]


def parsed(given: Sequence[str] | None = None) -> tuple[Fleet, bool]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    for each in fields(Fleet):
        flag, text, default = each.name.replace("_", "-"), each.metadata["help"], each.default
        options: dict[str, Any] = {"action": "store_true"}
        if not isinstance(default, bool):
            pair = default if isinstance(default, tuple) else None
            text += f" (default: {' '.join(f'{value:g}' for value in pair or (default,))})"
            options = {"nargs": 2, "metavar": ("A", "B")} if pair else {"metavar": "N"}
            options |= {"type": type(pair[0] if pair else default), "default": default}
        parser.add_argument(f"--{flag}", help=text, **options)
    parser.add_argument("--json", action="store_true", help="print all figures as a JSON object")
    found = vars(parser.parse_args(given))
    as_json = found.pop("json")
    fleet = Fleet(**found)
    for name in ("hosts", "slots", "workers", "cores", "shards", "consumers", "minutes"):
        if getattr(fleet, name) <= 0:
            parser.error(f"--{name} must be above 0")
    if fleet.shards > fleet.hosts:
        parser.error("--shards: each Redis server needs a host of its own")
    return fleet, as_json


def main(given: Sequence[str] | None = None) -> None:
    fleet, as_json = parsed(given)
    found = simulate(fleet)
    print(json.dumps(found) if as_json else "\n".join(report(found)))


if __name__ == "__main__":
    main()
