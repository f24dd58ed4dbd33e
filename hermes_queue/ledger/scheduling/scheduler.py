"""Keeps the tree of waiting jobs in order, and shows what its parts wait for and use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.keyspace.deployment import Deployment
from hermes_queue.ledger.answers import number_in
from hermes_queue.ledger.scheduling.shares import KINDS, Share, ShareKind, rows_of

VISITED_AT_ONCE = 250
"""Leaves that one call of `tick` looks at."""
VISIT_S = 1.0
"""Shortest time between two visits in the fleet."""
TICKETS_AT_ONCE = 256
"""Messages that one call of `tick` sends to a lane without any."""
HALF_LIFE_S = 1800.0
LEAVES_MOST = 20_000
"""Leaves, one for each run and env of a lane, that `Scheduler.by_run` looks at."""


@dataclass(frozen=True, slots=True)
class SlotUse:
    """What one lane, team, run or env waits for and uses, and what is set for it."""

    kind: ShareKind
    name: str
    running: int | None
    """None = not counted."""
    waiting: int | None
    """Jobs of a lane that wait; None = not counted."""
    mean_slots: float | None
    """Slots used lately, weighted by half-life; None = not known."""
    share: Share


@dataclass(frozen=True, slots=True)
class RunUse:
    """Jobs of one run in one lane, which may be of several envs."""

    lane: str
    team: str
    run_id: str
    running: int
    waiting: int


class Scheduler:
    """The tree of waiting jobs of one deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def tick(self, lanes: Sequence[str], *, every_s: float = VISIT_S) -> tuple[int, int]:
        """Do what is due; returns the numbers of leaves visited and messages sent.

        `lanes` are those for which missing messages are sent. Every worker calls this about once a
        second; see `sched_tick.lua`.

        Raises:
            RedisUnavailable, RedisFull: repeat the call.
        """
        answer = self._deployment.call(
            "sched_tick",
            every_s=every_s,
            most=VISITED_AT_ONCE,
            tickets=TICKETS_AT_ONCE,
            lanes=lanes,
        )
        return int(answer.visited), int(answer.sent)

    def usage(self) -> list[SlotUse]:
        """Lanes that have used slots lately, and all for which anything is set.

        The cost does not depend on the number of jobs and runs. Waiting jobs are those of the last
        round of `tick`.

        Raises:
            RedisUnavailable: no answer.
        """
        client: Any = self._deployment.client
        with explained(self._deployment.url):
            raw = client.hgetall(self._deployment.key("sched"))
        fields = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in raw.items()}
        rows = rows_of(fields)
        names = dict.fromkeys(rows)
        for field in fields:
            letter, _, name = field.partition("|")
            if letter in ("u", "n"):
                names.setdefault(("lane", name))
        running = self._running(list(names))
        found = []
        for kind, name in sorted(names):
            waiting = mean = None
            if kind == "lane":
                waiting = int(number_in(fields.get(f"n|{name}")))
                mean = _mean_slots(fields, name, rows.get(("fleet", ""), Share()))
            share = rows.get((kind, name), Share())
            found.append(SlotUse(kind, name, running.get((kind, name)), waiting, mean, share))
        return found

    def reached(self, most: int) -> list[tuple[ShareKind, str]]:
        """Up to `most` limits of runs, teams and envs at which jobs wait.

        Raises:
            RedisUnavailable: no answer.
        """
        client: Any = self._deployment.client
        with explained(self._deployment.url):
            names = client.zrevrange(self._deployment.key("sched:blocked"), 0, most - 1)
        found = []
        for kind, _, name in (each.decode(errors="replace").partition("|") for each in names):
            if kind in KINDS:
                found.append((kind, name))
        return found

    def by_run(self) -> list[RunUse]:
        """Each run with jobs that run or wait in the tree, by lane and team; of `LEAVES_MOST`.

        Raises:
            RedisUnavailable: no answer.
        """
        client: Any = self._deployment.client
        key = self._deployment.key
        with explained(self._deployment.url):
            leaves = client.zrange(key("sched:leaves"), 0, LEAVES_MOST - 1)
            with client.pipeline(transaction=False) as pipe:
                for leaf in leaves:
                    pipe.hget(key("sched:running"), leaf)
                    pipe.zcard(key("sched:jobs:") + leaf.decode(errors="replace"))
                answers = pipe.execute(raise_on_error=False)
        found: dict[tuple[str, ...], list[int]] = {}
        for leaf, field, waiting in zip(leaves, answers[::2], answers[1::2], strict=True):
            parts = leaf.decode(errors="replace").split("|")
            running = field.split(b" ")[0] if isinstance(field, bytes) else None
            sums = found.setdefault(tuple(parts[:3]), [0, 0])
            sums[0] += max(0, int(number_in(running)))
            sums[1] += waiting if isinstance(waiting, int) else 0
        return [
            RunUse(*of, *sums) for of, sums in sorted(found.items()) if len(of) == 3 and any(sums)
        ]

    def _running(self, names: Sequence[tuple[ShareKind, str]]) -> dict[tuple[ShareKind, str], int]:
        """Running jobs; those of lanes, teams and envs are counted only if anything is set."""
        client: Any = self._deployment.client
        key = self._deployment.key
        with explained(self._deployment.url), client.pipeline(transaction=False) as pipe:
            pipe.hget(key("sched:running"), "limits")
            for kind, name in names:
                if kind == "run":
                    pipe.hget(key(f"run:{name}"), "running")
                elif kind == "fleet":
                    pipe.zcard(key("leases"))
                else:
                    pipe.hget(key("sched:running"), f"{kind}|{name}")
            counted, *found = pipe.execute(raise_on_error=False)
        return {
            each: max(0, int(number_in(count)))
            for each, count in zip(names, found, strict=True)
            if not isinstance(count, Exception) and (counted or each[0] in ("run", "fleet"))
        }


def _mean_slots(fields: dict[str, str], lane: str, fleet: Share) -> float:
    half_s = fleet.half_life_s or HALF_LIFE_S
    point = number_in(fields.get(f"u|{lane}"))
    ahead_s = point - number_in(fields.get("at"))
    return 2 ** min(50.0, ahead_s / half_s) * math.log(2) / half_s if point else 0.0
