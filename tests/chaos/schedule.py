"""The events of a chaos run, and the time jobs take to run again after a kill."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import redis

from hermes_queue.errors import HermesQueueError
from tests.chaos.fleet import DoomedFleet, Process

WEIGHTS = {
    "kill worker": 40,
    "freeze worker": 6,
    "terminate worker": 8,
    "kill redis": 8,
    "reset connections": 10,
    "fill redis": 5,
    "fill stream": 4,
    "kill consumer": 12,
    "kill producer": 8,
    "kill everything": 3,
    "lose graders": 8,
}
LONG_S = 60.0
"""From here on a job that waits to run again is named."""
HUGE_BYTES = 1 << 40
_FILL = """
if redis.call('SET', KEYS[1], '1', 'NX', 'EX', 3600) then redis.call('INCRBY', KEYS[2], ARGV[1]) end
return 1"""
_DRAIN = """
if redis.call('DEL', KEYS[1]) == 1 then redis.call('DECRBY', KEYS[2], ARGV[1]) end
return 1"""
PATIENCE_LEASES = (3.5, 4.5)
"""For how long all graders are gone; after three, agents' workers grade for them."""
_ON_REDIS = ("kill redis", "reset connections", "fill redis", "kill everything")


@dataclass
class Schedule:
    """A seeded sequence of events, and their results."""

    fleet: DoomedFleet
    seed: int
    interval_s: float
    """Mean seconds between two events."""
    counts: Counter[str] = field(default_factory=Counter)
    recovery_s: list[float] = field(default_factory=list)
    orphans: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Trajectories that ran on a killed worker and not since: epoch, and time of the kill."""

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        names = [n for n in WEIGHTS if self.fleet.redis or n not in _ON_REDIS]
        self._names = [n for n in names if self.fleet.graders or n != "lose graders"]
        self._due = time.monotonic() + self.interval_s
        self._later: list[tuple[float, Process, Callable[[], None]]] = []
        self._room_at = 0.0
        self._stream_until = 0.0
        self._ledger = self.fleet.connect()

    def tick(self) -> None:
        """Do what is due. Call it several times a second."""
        now = time.monotonic()
        for due in list(self._later):
            if now >= due[0]:
                self._later.remove(due)
                due[2]()
        self._make_room(now)
        self.watch()
        if now >= self._due:
            self._due = now + self._dice.uniform(0.5, 1.5) * self.interval_s
            name = self._dice.choices(self._names, [WEIGHTS[n] for n in self._names])[0]
            if self._act(name):
                self.counts[name] += 1

    def settle(self) -> None:
        """Start all stopped processes; no more events."""
        for _, _, action in sorted(self._later, key=lambda due: due[0]):
            action()
        self._later = []
        self._make_room(float("inf"))
        self.fleet.wait_for_redis()

    def watch(self) -> None:
        """Follow the jobs of killed workers, and restart processes that ended by themselves.

        A worker that finds Redis full at its start reports that and ends; in production its
        supervisor starts it again.
        """
        self._look_for_orphans()
        waiting = self._waiting
        supervised = [*self.fleet.everybody, *self.fleet.consumers]
        if self.fleet.producer and self.fleet.producer.failed:
            supervised.append(self.fleet.producer)
        for process in supervised:
            if not process.alive and process not in waiting:
                self.counts["restarted"] += 1
                process.start()

    def _act(self, name: str) -> bool:
        match name:
            case "kill worker" | "terminate worker" | "freeze worker":
                return self._strike_worker(name.partition(" ")[0])
            case "kill everything":
                return self._kill_everything()
            case "lose graders":
                return self._lose_graders()
            case "kill redis" if self.fleet.redis:
                return self._kill(self.fleet.redis, self._dice.uniform(1, 6))
            case "kill consumer":
                return self._kill(self._dice.choice(self.fleet.consumers), 1.0)
            case "kill producer" if self.fleet.producer and self.fleet.producer.alive:
                return self._kill(self.fleet.producer, 1.0)
            case "reset connections":
                return self._redis(lambda client: client.client_kill_filter(_type="normal"))
            case "fill stream":
                self._stream_until = time.monotonic() + self._dice.uniform(2, 8)
                return self._size(_FILL)  # as with a reader that hangs
            case "fill redis":
                self._room_at = time.monotonic() + self._dice.uniform(1, 4)
                return self._redis(lambda client: client.config_set("maxmemory", 1))
        return False

    def _strike_worker(self, how: str) -> bool:
        """Strike a worker that runs something; killing an idle one would prove nothing."""
        held = self._held()
        waiting = self._waiting
        workers = [w for w in self.fleet.everybody if w.alive and held.get(w.pid)]
        workers = [w for w in workers if w not in waiting]
        if not workers:
            return False
        worker = self._dice.choice(workers)
        if how == "terminate":
            worker.stop()
            self._at(1.0, worker, worker.start)
            return True
        self._expect(held[worker.pid])
        if how == "kill":
            return self._kill(worker, self._dice.uniform(0.5, 4))
        self._freeze(worker, self._dice.uniform(1.5, 2.5) * self.fleet.lease_s)
        return True

    def _freeze(self, worker: Process, pause_s: float) -> None:
        """Stop a worker for longer than its leases, which have expired when it wakes."""
        worker.send(signal.SIGSTOP)
        self._at(pause_s, worker, partial(worker.send, signal.SIGCONT))

    def _lose_graders(self) -> bool:
        """Kill or freeze all graders at once, until agents' workers have to grade for them."""
        held, graders, waiting = self._held(), self.fleet.graders, self._waiting
        if any(not each.alive or each in waiting for each in graders):
            return False
        pause_s = self._dice.uniform(*PATIENCE_LEASES) * self.fleet.lease_s
        is_kill = self._dice.random() < 0.5
        for each in graders:
            self._expect(held.get(each.pid, []))
            if is_kill:
                self._kill(each, pause_s)
            else:
                self._freeze(each, pause_s)
        return True

    def _kill_everything(self) -> bool:
        """Kill all processes, as when a whole host dies; Redis comes back first."""
        held = self._held()
        if not held or not self.fleet.redis:
            return False
        for orphans in held.values():
            self._expect(orphans)
        self._kill(self.fleet.redis, 1.0)
        for process in (*self.fleet.everybody, *self.fleet.consumers, self.fleet.producer):
            if process:
                self._kill(process, 2.0)
        return True

    @property
    def _waiting(self) -> list[Process]:
        """Processes that are to be started or continued."""
        return [process for _, process, _ in self._later]

    def _held(self) -> dict[int, list[tuple[str, int]]]:
        """Trajectories and epochs that each live worker runs, by pid; {} without Redis."""
        held: dict[int, list[tuple[str, int]]] = defaultdict(list)
        client, key = self._ledger.client, self._ledger.key
        try:
            pids = {worker["owner"]: worker["pid"] for worker in self._ledger.workers()}
            leases: Any = client.zrange(key("leases"), 0, -1)
            for name in map(bytes.decode, leases):
                owner, epoch = self._ledger.hash_fields(f"traj:{name}", "owner", "epoch")
                if owner in pids:
                    held[pids[owner]].append((name, int(epoch)))
        except (HermesQueueError, redis.RedisError):
            return {}
        return held

    def _expect(self, held: list[tuple[str, int]]) -> None:
        """Time how long these take to run again."""
        self.orphans |= {name: (epoch, time.monotonic()) for name, epoch in held}

    def _kill(self, process: Process, pause_s: float) -> bool:
        if not process.alive or process in self._waiting:
            return False
        process.kill()
        self._at(pause_s, process, process.start)
        return True

    def _at(self, delay_s: float, process: Process, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + delay_s, process, action))

    def _look_for_orphans(self) -> None:
        with suppress(HermesQueueError):
            for name, (epoch, killed_at) in list(self.orphans.items()):
                state, now = self._ledger.hash_fields(f"traj:{name}", "state", "epoch")
                ran_again = int(now or 0) > epoch
                if state == "final" or ran_again:
                    del self.orphans[name]
                if ran_again:
                    took_s = time.monotonic() - killed_at
                    self.recovery_s.append(took_s)
                    if took_s > LONG_S:
                        sys.stderr.write(f"{name} ran again after {took_s:.0f} s\n")

    def _redis(self, action: Callable[[Any], object]) -> bool:
        try:
            action(self._ledger.client)
        except redis.RedisError:
            return False
        return True

    def _size(self, script: str) -> bool:
        """Change the size that the results seem to have; safe to repeat."""
        both = map(self._ledger.key, ("chaos:full", "results:bytes"))
        return self._redis(lambda client: client.eval(script, 2, *both, HUGE_BYTES))

    def _make_room(self, now: float) -> None:
        if 0 < self._stream_until <= now and self._size(_DRAIN):
            self._stream_until = 0.0
        if 0 < self._room_at <= now:
            if self._redis(lambda client: client.config_set("maxmemory", 0)):
                self._room_at = 0.0
