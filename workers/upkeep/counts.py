"""What this process has counted, until the keeper tells the fleet."""

from __future__ import annotations

import threading
from collections import Counter

from hermes_queue.ledger import ACCEPTED, PublishVerdict


class ProcessTally:
    """Attempts by cause and trajectories that ended by run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()

    def attempt(self, cause: str) -> None:
        """An attempt has ended, with a failure of `cause` or ("") without one."""
        with self._lock:
            self._attempts[cause] += 1

    def published(self, run_id: str, verdict: PublishVerdict) -> None:
        """The ledger has answered to a record of the run; what it did not accept is not counted."""
        if verdict in ACCEPTED:
            with self._lock:
                self._ended[run_id] += 1

    def take(self) -> tuple[Counter[str], Counter[str]]:
        """All counts; they start from nothing again."""
        with self._lock:
            taken = self._attempts, self._ended
            self._attempts, self._ended = Counter(), Counter()
        return taken

    def put_back(self, attempts: Counter[str], ended: Counter[str]) -> None:
        """Add counts that could not be told."""
        with self._lock:
            self._attempts += attempts
            self._ended += ended
