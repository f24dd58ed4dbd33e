"""What is done to the fleet, when, and how long jobs take to run again after a kill."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis

from hermes_queue.errors import HermesQueueError
from workers.chaos.fleet import Fleet, Process

WEIGHTS = {
    "kill worker": 45,
    "terminate worker": 10,
    "kill redis": 10,
    "reset connections": 10,
    "fill redis": 5,
    "kill consumer": 12,
    "kill producer": 8,
}
_ON_REDIS = ("kill redis", "reset connections", "fill redis")


@dataclass
class Orphan:
    """A trajectory that ran on a killed worker."""

    trajectory_id: str
    epoch: int
    killed_at: float


@dataclass
class Schedule:
    """A seeded sequence of events, and what came of them."""

    fleet: Fleet
    seed: int
    interval_s: float
    """On average between two events."""
    counts: Counter[str] = field(default_factory=Counter)
    recovery_s: list[float] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)  # noqa: S311 - no secret
        self._names = [n for n in WEIGHTS if self.fleet.redis or n not in _ON_REDIS]
        self._due = time.monotonic() + self.interval_s
        self._starts: list[tuple[float, Process]] = []
        self._orphans: list[Orphan] = []
        self._room_at = 0.0
        self._ledger = self.fleet.connect()

    def tick(self) -> None:
        """Do what is due. Call it several times a second."""
        now = time.monotonic()
        for moment, process in list(self._starts):
            if now >= moment:
                self._starts.remove((moment, process))
                process.start()
        self._make_room(now)
        self.watch()
        if now >= self._due:
            self._due = now + self._dice.uniform(0.5, 1.5) * self.interval_s
            name = self._dice.choices(self._names, [WEIGHTS[n] for n in self._names])[0]
            if self._act(name):
                self.counts[name] += 1
                self.log.append(f"{time.strftime('%H:%M:%S')} {name}")

    def settle(self) -> None:
        """Start whatever is down; no more events."""
        for _, process in self._starts:
            process.start()
        self._starts = []
        self._make_room(float("inf"))
        self.fleet.wait_for_redis()

    def watch(self) -> None:
        """See how jobs of killed workers come on, and start what ended by itself.

        A worker that meets a Redis without room at its start says so and ends; whatever
        supervises it in production starts it again.
        """
        self._look_for_orphans()
        waiting = [process for _, process in self._starts]
        for process in (*self.fleet.workers, *self.fleet.consumers):
            if not process.alive and process not in waiting:
                self.counts["restarted"] += 1
                process.start()

    @property
    def orphans_left(self) -> list[str]:
        """Trajectories of killed workers that have not begun again."""
        return [orphan.trajectory_id for orphan in self._orphans]

    def _act(self, name: str) -> bool:
        match name:
            case "kill worker" | "terminate worker":
                return self._end_worker(kill=name == "kill worker")
            case "kill redis" if self.fleet.redis:
                return self._kill(self.fleet.redis, self._dice.uniform(1, 6))
            case "kill consumer":
                return self._kill(self._dice.choice(self.fleet.consumers), 1.0)
            case "kill producer" if self.fleet.producer and self.fleet.producer.alive:
                return self._kill(self.fleet.producer, 1.0)
            case "reset connections":
                return self._redis(lambda client: client.client_kill_filter(_type="normal"))
            case "fill redis":
                self._room_at = time.monotonic() + self._dice.uniform(1, 4)
                return self._redis(lambda client: client.config_set("maxmemory", 1))
        return False

    def _end_worker(self, *, kill: bool) -> bool:
        """Only a worker that runs something is worth it; a kill of an idle one proves nothing."""
        try:
            owners = {worker["pid"]: worker["owner"] for worker in self._ledger.workers()}
            running = self._running()
        except (HermesQueueError, redis.RedisError):
            return False
        workers = [w for w in self.fleet.workers if w.alive]
        self._dice.shuffle(workers)
        for worker in workers:
            held = [o for o in running if o[2] == owners.get(worker.pid)]
            if not held:
                continue
            if kill:
                now = time.monotonic()
                self._orphans += [Orphan(name, epoch, now) for name, epoch, _ in held]
                return self._kill(worker, self._dice.uniform(0.5, 4))
            worker.stop()
            self._starts.append((time.monotonic() + 1, worker))
            return True
        return False

    def _kill(self, process: Process, pause_s: float) -> bool:
        if not process.alive:
            return False
        process.kill()
        self._starts.append((time.monotonic() + pause_s, process))
        return True

    def _running(self) -> list[tuple[str, int, str]]:
        """(trajectory, epoch, owner) of everything that is leased."""
        client: Any = self._ledger.client
        ids = [raw.decode() for raw in client.zrange(self._ledger.key("leases"), 0, -1)]
        found = []
        for name in ids:
            owner, epoch = client.hmget(self._ledger.key(f"traj:{name}"), "owner", "epoch")
            if owner:
                found.append((name, int(epoch), owner.decode()))
        return found

    def _look_for_orphans(self) -> None:
        client: Any = self._ledger.client
        try:
            for orphan in list(self._orphans):
                key = self._ledger.key(f"traj:{orphan.trajectory_id}")
                state, epoch = client.hmget(key, "state", "epoch")
                if state == b"final" or int(epoch or 0) > orphan.epoch:
                    self._orphans.remove(orphan)
                    if int(epoch or 0) > orphan.epoch:
                        self.recovery_s.append(time.monotonic() - orphan.killed_at)
        except redis.RedisError:
            return

    def _redis(self, action: Callable[[Any], object]) -> bool:
        try:
            action(self._ledger.client)
        except redis.RedisError:
            return False
        return True

    def _make_room(self, now: float) -> None:
        if (
            self._room_at
            and now >= self._room_at
            and self._redis(lambda client: client.config_set("maxmemory", 0))
        ):
            self._room_at = 0.0
