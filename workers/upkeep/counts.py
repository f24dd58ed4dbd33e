"""Counts of this process, until the keeper reports them to the fleet."""

from __future__ import annotations

import threading
from collections import Counter

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.ledger import ACCEPTED, PublishVerdict
from hermes_queue.telemetry.scrubbing import scrub


class ProcessTally:
    """Attempts by cause, and ended trajectories by run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()

    def attempt(self, cause: str) -> None:
        """Count an attempt that ended with a failure of `cause`, or ("") without one."""
        with self._lock:
            self._attempts[cause] += 1

    def published(self, run_id: str, verdict: PublishVerdict) -> None:
        """Count a record of the run if the ledger accepted it."""
        if verdict in ACCEPTED:
            with self._lock:
                self._ended[run_id] += 1

    def take(self) -> tuple[Counter[str], Counter[str]]:
        """Return all counts and reset them."""
        with self._lock:
            taken = self._attempts, self._ended
            self._attempts, self._ended = Counter(), Counter()
        return taken

    def put_back(self, attempts: Counter[str], ended: Counter[str]) -> None:
        """Add counts whose report failed."""
        with self._lock:
            self._attempts += attempts
            self._ended += ended


CausesOfLane = dict[str, tuple[int, str]]
"""By cause ("" = no failure): attempts, and the message of the last one."""


class Outcomes:
    """Attempts by lane and cause, for the circuit breakers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[str, CausesOfLane] = {}

    def note(self, lane: str, failure: TrajectoryFailure | None) -> None:
        """Count an attempt on `lane` that has ended, with or without a failure."""
        self.put_back(lane, {failure.cause if failure else "": (1, scrub(str(failure or "")))})

    def take(self) -> dict[str, CausesOfLane]:
        """Return all counts by lane and reset them."""
        with self._lock:
            taken, self._lanes = self._lanes, {}
        return taken

    def put_back(self, lane: str, counts: CausesOfLane) -> None:
        """Add counts, e.g. those whose report failed."""
        with self._lock:
            known = self._lanes.setdefault(lane, {})
            for cause, (count, message) in counts.items():
                known[cause] = (known.get(cause, (0, ""))[0] + count, message)
