"""A snapshot of the whole deployment for people and dashboards, read in a few round trips.

Its size grows with lanes, workers and active runs, never with waiting or finished jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.accounts.shared import SharedBudget, SharedBudgets
from hermes_queue.ledger.fleet.lanes import Breakers, LaneState, known_lanes
from hermes_queue.ledger.fleet.tally import Lately, Tally
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.runs import RunInfo, Runs
from hermes_queue.ledger.scheduling import Scheduler
from hermes_queue.ledger.waiting import next_waiting
from hermes_queue.queues import lanes_with_quarantine, queue_keys
from hermes_queue.results.consumers import ConsumerGroup, consumer_groups

RATE_WINDOW_S = 600.0
"""Window for measuring the pace of a run."""
FAILURE_WINDOW_S = 3600.0
_HEADS = 16
"""Jobs that are next in a lane, among which the longest wait is looked for."""
MOST_RUNS = 50
MOST_LIMITS = 50
"""Number of runs that are read, most recently enqueued first."""


@dataclass(frozen=True, slots=True)
class RedisState:
    """The Redis server's description of itself."""

    version: str
    used_bytes: int
    max_bytes: int
    """0 = no limit."""
    policy: str
    aof: bool
    clients: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane; `breaker` shows whether it is paused, `endpoints` whose jobs are held in it."""

    name: str
    depth: int
    """Messages waiting for a worker."""
    retries: int
    """Retries and handed-back jobs among them."""
    oldest_s: float | None
    """Wait of the longest waiting message; None = no message waits."""
    running: int
    workers: int
    breaker: LaneState
    endpoints: Sequence[LaneState] = ()


@dataclass(frozen=True, slots=True)
class RunProgress:
    """One run, with its recent pace and the estimated time to its end."""

    info: RunInfo
    per_hour: float
    """Trajectories ended per hour, at the pace of the last minutes."""
    eta_s: float | None
    """None if no trajectory ended recently, or the run is not active."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """The results stream."""

    groups: int
    bytes: int
    readers: tuple[ConsumerGroup, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that `status` and `top` show."""

    at: float
    """Unix seconds of Redis' clock."""
    redis: RedisState
    lanes: tuple[Lane, ...]
    delayed: int
    """Jobs waiting for a retry, a lane or a budget."""
    leased: int
    """Running trajectories."""
    workers: tuple[dict[str, Any], ...]
    """The workers' heartbeats, by name."""
    sandboxes: int
    starting: int
    """Sandboxes that are being created."""
    runs: tuple[RunProgress, ...]
    lately: Lately
    dead_letters: int
    stream: StreamState
    budgets: tuple[SharedBudget, ...] = ()
    """Shared budgets for whose room jobs wait."""
    limits: tuple[tuple[str, str], ...] = ()
    """Kind and name of runs, teams and envs of which no more may run, while jobs of theirs wait."""

    @property
    def oldest(self) -> list[dict[str, Any]]:
        """The longest running trajectories of the fleet."""
        found = [
            {**each, "age_s": each["age_s"] + worker["silent_s"], "worker": worker.get("name", "")}
            for worker in self.workers
            for each in worker.get("oldest", ())
        ]
        return sorted(found, key=lambda each: -each["age_s"])


def overview(ledger: Ledger) -> Overview:
    """Read the state of the whole deployment.

    Raises:
        RedisUnavailable: Redis does not answer.
    """
    with explained(ledger.url):
        return _overview(ledger)


def _overview(ledger: Ledger) -> Overview:
    client: Any = ledger.client
    seconds, micros = client.time()
    now = seconds + micros / 1e6
    with client.pipeline(transaction=False) as pipe:
        pipe.zcard(ledger.key("delayed"))
        pipe.zcard(ledger.key("leases"))
        pipe.zcard(ledger.key("sandboxes"))
        pipe.xlen(ledger.key("dead"))
        pipe.xlen(ledger.key("results"))
        pipe.get(ledger.key("results:bytes"))
        delayed, leased, sandboxes, dead, groups, stream_bytes = pipe.execute()
    workers = sorted(ledger.workers(), key=lambda worker: str(worker.get("name", "")))
    return Overview(
        at=now,
        redis=_redis(client.info()),
        lanes=_lanes(ledger, known_lanes(ledger), workers, now),
        delayed=delayed,
        leased=leased,
        workers=tuple(workers),
        sandboxes=sandboxes,
        starting=_starting(ledger, workers),
        runs=_runs(ledger, now),
        lately=Tally(ledger).lately(FAILURE_WINDOW_S, now=now),
        dead_letters=dead,
        stream=StreamState(groups, int(stream_bytes or 0), tuple(consumer_groups(ledger))),
        budgets=tuple(each for each in SharedBudgets(ledger).all() if each.waiting),
        limits=tuple(Scheduler(ledger).reached(MOST_LIMITS)),
    )


def _progress(info: RunInfo, lately: Lately, now: float) -> RunProgress:
    """The pace of a run and its estimated end; `lately` covers the last minutes."""
    age_s = max(1.0, now - info.created)
    pace = lately.ended.get(info.run_id, 0) / min(lately.window_s, age_s)
    left = info.counters.queued + info.counters.running
    active = info.state == "active" and pace > 0
    return RunProgress(info, round(3600 * pace, 1), left / pace if active else None)


def _starting(ledger: Ledger, workers: Iterable[Mapping[str, Any]]) -> int:
    backends = sorted({str(worker.get("backend", "")) for worker in workers})
    with ledger.client.pipeline(transaction=False) as pipe:
        for backend in backends:
            pipe.zcard(ledger.key(f"creation:{backend}:starting"))
        return sum(pipe.execute())


def _redis(info: Mapping[str, Any]) -> RedisState:
    return RedisState(
        version=str(info.get("redis_version", "?")),
        used_bytes=int(info.get("used_memory", 0)),
        max_bytes=int(info.get("maxmemory", 0)),
        policy=str(info.get("maxmemory_policy", "?")),
        aof=bool(info.get("aof_enabled", 0)),
        clients=int(info.get("connected_clients", 0)),
    )


def _runs(ledger: Ledger, now: float) -> tuple[RunProgress, ...]:
    runs, lately = Runs(ledger), Tally(ledger).lately(RATE_WINDOW_S, now=now)
    found = runs.several(runs.ids()[:MOST_RUNS])
    return tuple(_progress(info, lately, now) for info in found)


def _lanes(
    ledger: Ledger, known: Iterable[str], workers: Sequence[Mapping[str, Any]], now: float
) -> tuple[Lane, ...]:
    served = {lane for worker in workers for lane in worker.get("lanes", ())}
    names = {name for lane in served | set(known) for name in lanes_with_quarantine(lane)}
    found = (lane_now(ledger, name, workers, now) for name in sorted(names))
    relevant = {*served, *known}
    return tuple(lane for lane in found if lane.name in relevant or lane.depth or lane.running)


def lane_now(ledger: Ledger, name: str, workers: Sequence[Mapping[str, Any]], now: float) -> Lane:
    """One lane as of `now` (Unix time of Redis, s); `workers` comes from `Ledger.workers`."""
    keys = queue_keys(name)
    lists = [ledger.key(key) for key in keys.all]
    with ledger.client.pipeline(transaction=False) as pipe:
        for each in lists:
            pipe.llen(each)
        answers: list[Any] = pipe.execute(raise_on_error=False)
    # A producer may write these keys: one that is no list hides no other lane.
    depths = [each if isinstance(each, int) else 0 for each in answers]
    return Lane(
        name=name,
        depth=sum(depths),
        retries=sum(depths[: len(keys.retry)]),
        oldest_s=_longest_wait(ledger, name, now),
        running=sum(worker.get("running_by_lane", {}).get(name, 0) for worker in workers),
        workers=sum(name in worker.get("lanes", ()) for worker in workers),
        breaker=Breakers(ledger).state(name),
        endpoints=Breakers(ledger).open_endpoints(name),
    )


def _longest_wait(ledger: Ledger, lane: str, now: float) -> float | None:
    """The longest wait among jobs that are next."""
    ids = next_waiting(ledger, [lane], most=_HEADS)
    if not ids:
        return None
    try:
        since: Any = ledger.client.zmscore(ledger.key("waiting"), ids)
    except redis.ResponseError:  # it is no sorted set
        return None
    return max((now - score for score in since if score is not None), default=None)
