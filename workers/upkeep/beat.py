"""The facts that a worker reports with each beat: slots, and progress of trajectories."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_queue.broker.pool import TaskPool
from hermes_queue.broker.pool.intake import INTAKE
from hermes_queue.ledger import Claim
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
            "metrics": self.metrics,
            **self.inventory.counts(),
            "stages": dict(Counter(each.stage for each in running.values())),
            "running_by_lane": dict(Counter(each.lane for each in running.values() if each.lane)),
            "oldest": oldest(running),
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
