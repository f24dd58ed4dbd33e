"""Which workers grade: those for it, and others while these are missing.

What was handed over is graded by graders. When none has been there for a while, workers of the
lane of agents take it, until graders are back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from hermes_queue.broker.pool.intake import INTAKE
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.handovers import grading_of, note_graders
from hermes_queue.queues import lanes_with_quarantine
from hermes_queue.wire.names import QUARANTINE, VERIFY
from workers.runtime import Runtime

logger = logging.getLogger(__name__)

PATIENCE_LEASES = 3
"""For how many leases nobody grades work that waits before other workers take it: graders that are
restarted find it."""


class GradersWatch:
    """This worker's part. For one thread."""

    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        self._runtime = runtime
        self._ledger = ledger
        self._missing: dict[str, float] = {}
        """Lanes of agents for which nobody grades, and since when on the monotonic clock."""

    def look(self) -> None:
        """Report that this worker grades, or find out whether it has to; to be called with beats.

        Raises:
            RedisUnavailable, RedisFull: repeat the call.
        """
        lanes = INTAKE.open_lanes
        graded = [each for each in lanes if each.endswith(VERIFY) and each not in INTAKE.stands_in]
        if graded:
            names = [each.removesuffix(VERIFY) for each in graded]
            ttl_s = self._runtime.lease.duration_s
            note_graders(self._ledger, names, host=self._runtime.host, ttl_s=ttl_s)
        if self._runtime.worker.stages != "verify":
            theirs = {f"{lane}{VERIFY}": lane for lane in lanes if QUARANTINE not in lane}
            others = [each for each in theirs if each not in graded and VERIFY not in theirs[each]]
            INTAKE.stand_in(tuple(each for each in others if self._is_needed(each)))

    def _is_needed(self, lane: str) -> bool:
        """Whether this worker has to serve a lane of graders."""
        found = grading_of(self._ledger, lane.removesuffix(VERIFY), lanes_with_quarantine(lane))
        is_there, now = lane in INTAKE.stands_in, time.monotonic()
        if found.state == "graded":
            self._missing.pop(lane, None)
            if is_there:
                logger.info("%s has graders again", lane, extra={"action": "graders_back"})
            return False
        if found.state == "idle" or is_there:
            return is_there
        missing_s = now - self._missing.setdefault(lane, now)
        if missing_s < PATIENCE_LEASES * self._runtime.lease.duration_s:
            return False
        if not self._has_copies(lane.removesuffix(VERIFY), found.hosts):
            return False
        message = "%s has had no graders for %.0f s: this worker grades what waits there"
        logger.warning(message, lane, missing_s, extra={"action": "graders_missing"})
        return True

    def _has_copies(self, lane: str, hosts: frozenset[str]) -> bool:
        """Whether no other worker of the lane is nearer to copies of slots that were handed over.

        Such copies of local slots are on the host where all graders were; see `handover.lua`.
        """
        about = self._runtime.backend.capabilities
        if about.remote or not about.snapshot or not hosts or self._runtime.host in hosts:
            return True
        near = [each for each in self._ledger.workers() if each.get("host") in hosts]
        return not any(_takes(each, lane) for each in near)


def _takes(facts: Mapping[str, Any], lane: str) -> bool:
    """Whether a worker takes jobs of a lane now, by its last beat."""
    is_served = lane in facts.get("lanes", ()) and lane not in facts.get("paused_lanes", ())
    return is_served and facts.get("intake") == "open"
