"""Counts of this process, until the keeper reports them to the fleet."""

from __future__ import annotations

import threading
from collections import Counter

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.ledger import ACCEPTED, PublishVerdict
from hermes_queue.ledger.fleet.lanes import EndedAttempts, Watched, causes_of
from hermes_queue.models import TrajectoryJob
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


Causes = dict[str, EndedAttempts]
"""Attempts by cause ("" = no failure)."""


class Outcomes:
    """Attempts by cause and what has a circuit breaker: lanes and endpoints. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[Watched, Causes] = {}

    def note(self, lane: str, job: TrajectoryJob, failure: TrajectoryFailure | None) -> None:
        """Count an attempt of `job` on `lane` that has ended, with or without a failure."""
        cause = failure.cause if failure else ""
        counts = {cause: EndedAttempts(1, scrub(str(failure or "")), job.run_id)}
        self.put_back(Watched(lane), counts)
        # Other failures say nothing about the endpoint: it may not have been asked.
        endpoint = Watched.endpoint_of(lane, job.agent)
        if endpoint and cause in ("", *causes_of("endpoint")):
            self.put_back(endpoint, counts)

    def take(self) -> dict[Watched, Causes]:
        """Return all counts and reset them."""
        with self._lock:
            taken, self._watched = self._watched, {}
        return taken

    def put_back(self, watched: Watched, counts: Causes) -> None:
        """Add counts, e.g. those whose report failed."""
        with self._lock:
            known = self._watched.setdefault(watched, {})
            for cause, ended in counts.items():
                before = known[cause].attempts if cause in known else 0
                known[cause] = ended._replace(attempts=before + ended.attempts)
