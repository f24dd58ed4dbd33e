"""The facts that a worker reports: with each beat slots and progress, to probes its health."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_queue.agent.endpoint import trouble
from hermes_queue.broker.pool import TaskPool
from hermes_queue.broker.pool.intake import INTAKE, shutdown_is_ordered
from hermes_queue.ledger import Claim
from hermes_queue.telemetry.pages import NotNow
from workers.runtime import Runtime
from workers.upkeep.inventory import Inventory

LISTED = 10
"""Number of trajectories that a beat lists: those that have run longest."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Makes the facts of one beat, a few kilobytes; called from the keeper's thread."""

    runtime: Runtime
    inventory: Inventory
    backend: str
    started: float
    metrics: str = ""
    """Address of this worker's Prometheus endpoint; "" = none."""
    endpoints: list[str] | None = None
    """Endpoints that jobs may name; None = any."""

    def __call__(self) -> dict[str, Any]:
        """Return the facts as JSON values; ages are seconds."""
        runtime, pool = self.runtime, TaskPool.instance()
        running = runtime.progress()
        return {
            "owner": runtime.owner,
            "name": INTAKE.hostname,
            "pid": os.getpid(),
            "host": runtime.host,
            "lanes": list(INTAKE.lanes),
            "started": self.started,
            "up_s": round(time.time() - self.started, 1),
            "beat_s": runtime.lease.duration_s,
            "slots": pool.limit,
            "running": len(running),
            "free_slots": runtime.backend.free_slots,
            "intake": INTAKE.state,
            "paused_lanes": sorted(INTAKE.paused_lanes),
            "spooled": runtime.spool.count(),
            "backend": self.backend,
            "endpoints": self.endpoints,
            "trouble": trouble.by_run(),
            "metrics": self.metrics,
            **self.inventory.counts(),
            "stages": dict(Counter(each.stage for each in running.values())),
            "running_by_lane": dict(Counter(each.lane for each in running.values() if each.lane)),
            "oldest": oldest(running),
        }


class Renewals(Protocol):
    """The keeper, as far as health needs it."""

    @property
    def silent_s(self) -> float:
        """See `Keeper`."""

    @property
    def unheard_s(self) -> float:
        """See `Keeper`."""


@dataclass(slots=True)
class Health:
    """Whether this worker is stuck, and whether it takes work; for probes, from any thread.

    Stuck is one whose event loop or whose renewals stand still. One that waits, for jobs or for
    Redis, is not: to start it anew would help nobody, and cost what it runs.
    """

    runtime: Runtime
    keeper: Renewals | None = None
    """None until it begins: the worker is starting, and alive."""

    def live(self) -> tuple[bytes, str]:
        """The page of a liveness probe.

        Raises:
            NotNow: the worker is stuck.
        """
        facts = self._facts()
        limit_s = self.runtime.worker.blocked_exit_s or self.runtime.lease.duration_s
        # From half of it on, leases are not renewed for a loop that does not answer.
        if facts["loop_silent_s"] > limit_s / 2 or facts["renewals_silent_s"] > limit_s:
            raise NotNow(f"stuck: {json.dumps(facts)}")
        return json.dumps(facts).encode(), "application/json"

    def ready(self) -> tuple[bytes, str]:
        """The page of a readiness probe.

        Raises:
            NotNow: it takes no jobs, or Redis has not heard of it for the length of a lease.
        """
        facts = self._facts()
        heard = facts["redis_unheard_s"]
        if heard is None or heard > self.runtime.lease.duration_s or facts["intake"] != "open":
            raise NotNow(f"takes no jobs: {json.dumps(facts)}")
        return json.dumps(facts).encode(), "application/json"

    def _facts(self) -> dict[str, Any]:
        keeper = self.keeper
        unheard_s = keeper.unheard_s if keeper else math.inf
        return {
            "loop_silent_s": round(TaskPool.instance().loop_silent_s, 1),
            "renewals_silent_s": round(keeper.silent_s if keeper else 0.0, 1),
            "redis_unheard_s": None if math.isinf(unheard_s) else round(unheard_s, 1),
            "intake": "ending" if shutdown_is_ordered() else INTAKE.state,
            "running": len(self.runtime.progress()),
        }


def oldest(running: Mapping[Claim, Any], most: int = LISTED) -> list[dict[str, Any]]:
    """Return the trajectories that have run longest, the oldest first."""
    now = time.monotonic()
    ranked = sorted(running.items(), key=lambda pair: pair[1].since)[:most]
    return [
        {
            "trajectory_id": claim.trajectory_id,
            "label": each.label,
            "stage": each.stage,
            "age_s": round(now - each.since, 1),
            "turns": each.turns,
            "attempt": each.attempt,
        }
        for claim, each in ranked
    ]
