"""How the attempts of this process ended, until the keeper tells the breakers."""

from __future__ import annotations

import threading

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.telemetry.scrubbing import scrub

Counts = dict[str, tuple[int, str]]
"""By cause ("" = no failure): attempts, and the message of the last one."""


class Outcomes:
    """Counts by lane. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[str, Counts] = {}

    def note(self, lane: str, failure: TrajectoryFailure | None) -> None:
        """An attempt on `lane` has ended, with or without a failure."""
        self.put_back(lane, {failure.cause if failure else "": (1, scrub(str(failure or "")))})

    def take(self) -> dict[str, Counts]:
        """All counts by lane; they start from nothing again."""
        with self._lock:
            taken, self._lanes = self._lanes, {}
        return taken

    def put_back(self, lane: str, counts: Counts) -> None:
        """Add counts, e.g. those that could not be told."""
        with self._lock:
            known = self._lanes.setdefault(lane, {})
            for cause, (count, message) in counts.items():
                known[cause] = (known.get(cause, (0, ""))[0] + count, message)
